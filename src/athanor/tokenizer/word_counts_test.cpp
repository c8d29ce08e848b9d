#include "athanor/tokenizer/word_counts.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "athanor/base/error.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/tokenizer/word_runs.h"
#include "athanor/tokenizer/word_table.h"

namespace athanor {
namespace {

using Counts = std::map<std::string, uint64_t>;

Counts counts_of(const WordSource& words) {
  Counts counts;
  int64_t bytes = 0;
  words.for_each([&](std::string_view word, uint64_t count) {
    EXPECT_TRUE(counts.emplace(word, count).second) << "'" << word << "' comes twice";
    bytes += static_cast<int64_t>(word.size());
  });
  EXPECT_EQ(words.words(), static_cast<int64_t>(counts.size()));
  EXPECT_EQ(words.bytes(), bytes);
  return counts;
}

NextPiece pieces_of(std::vector<std::string> pieces) {
  return [pieces = std::move(pieces), next = size_t{0}](TextPiece& piece) mutable {
    if (next == pieces.size()) return false;
    piece.text = pieces[next++];
    piece.ends = {piece.text.size()};
    return true;
  };
}

std::vector<std::string> random_pieces(uint64_t seed, int pieces, int words, int different) {
  std::mt19937_64 random(seed);
  std::vector<std::string> result(static_cast<size_t>(pieces));
  for (std::string& piece : result) {
    for (int i = 0; i < words; ++i) {
      const auto number = random() % static_cast<uint64_t>(different);
      piece += fmt::format(" {}{}", std::string(1 + number % 7, static_cast<char>('a' + number % 26)),
                           number % 3 == 0 ? std::to_string(number) : "x");
    }
  }
  return result;
}

Counts expected_counts(const std::vector<std::string>& pieces) {
  Counts counts;
  for (const std::string& piece : pieces) {
    for_each_word(SplitPattern::gpt2, piece, [&](std::string_view word) { ++counts[std::string(word)]; });
  }
  return counts;
}

TEST(WordCounts, AreExactForEveryNumberOfThreads) {
  const std::vector<std::string> pieces = random_pieces(1, 20, 2000, 5000);
  const Counts expected = expected_counts(pieces);
  for (const int threads : {1, 2, 5}) {
    WordCountOptions options;
    options.threads = threads;
    EXPECT_EQ(counts_of(*count_words(pieces_of(pieces), options)), expected) << threads;
  }
  EXPECT_TRUE(counts_of(*count_words(pieces_of({}), {})).empty());
  EXPECT_TRUE(counts_of(*count_words(pieces_of({"", ""}), {})).empty());
}

// 20,000 words in tables of a quarter mebibyte: many runs, and no word is lost, however rare.
TEST(WordCounts, P120_SpillsExactCounts) {
  const TemporaryFolder folder;
  const std::vector<std::string> pieces = random_pieces(2, 25, 4000, 300000);
  const Counts expected = expected_counts(pieces);
  ASSERT_GT(expected.size(), 20000u);
  for (const int threads : {1, 3}) {
    WordCountOptions options;
    options.threads = threads;
    options.memory_bytes = 1;
    options.scratch = folder.path("words");
    FaultyFileEnvironment files(system_files(), {});  // for its log
    options.files = &files;
    const std::unique_ptr<WordSource> words = count_words(pieces_of(pieces), options);
    const std::vector<std::string> log = files.log();
    const auto creates = [](const std::string& line) { return line.starts_with("create "); };
    EXPECT_GT(std::count_if(log.begin(), log.end(), creates), 4);
    EXPECT_LT(words->memory_bytes(), 1 << 20);
    EXPECT_TRUE(system_files().list(folder.path()).empty());
    EXPECT_EQ(counts_of(*words), expected) << threads;
    EXPECT_EQ(counts_of(*words), expected) << "and once more";
  }
  EXPECT_TRUE(system_files().list(folder.path()).empty());
}

TEST(WordCounts, LongWordsAreCutBetweenCharacters) {
  const auto longest = static_cast<size_t>(longest_counted_word);
  const std::string letters(longest * 2 + 5, 'a');
  Counts expected{{std::string(longest, 'a'), 2}, {"aaaaa", 1}};
  EXPECT_EQ(counts_of(*count_words(pieces_of({letters}), {})), expected);

  std::string accents = "b";  // so that every other cut would split a character
  while (accents.size() < longest + 101) accents += "é";
  const Counts counts = counts_of(*count_words(pieces_of({accents}), {}));
  EXPECT_EQ(counts.size(), 2u);
  EXPECT_EQ(counts.count(accents.substr(0, longest - 1)), 1u);

  const std::string broken(longest + 1, '\x80');  // no character at all
  expected = {{std::string(longest, '\x80'), 1}, {"\x80", 1}};
  EXPECT_EQ(counts_of(*count_words(pieces_of({broken}), {})), expected);
}

TEST(WordCounts, WordsEndWhereADocumentDoes) {
  const NextPiece next = [first = true](TextPiece& piece) mutable {
    piece = {"abcd efgh", {2, 2, 9}};
    return std::exchange(first, false);
  };
  EXPECT_EQ(counts_of(*count_words(next, {})), (Counts{{"ab", 1}, {"cd", 1}, {" efgh", 1}}));
}

TEST(WordCounts, FailuresEndAllThreads) {
  for (const int threads : {1, 3}) {
    WordCountOptions options;
    options.threads = threads;
    int pieces = 0;
    const NextPiece failing = [&](TextPiece& piece) {
      if (++pieces == 10) throw_user_error("unreadable");
      piece = {"some words", {10}};
      return true;
    };
    EXPECT_THROW(count_words(failing, options), Error);
    EXPECT_EQ(pieces, 10);
  }
}

TEST(WordTable, KeepsWithinItsMemory) {
  WordTable table;
  int64_t refused_at = 0;
  for (int64_t i = 0; i < 100000; ++i) {
    if (!table.add(fmt::format("word{}", i), 1, 1 << 20)) {
      refused_at = i;
      break;
    }
    ASSERT_LE(table.memory_bytes(), 1 << 20);
  }
  EXPECT_GT(refused_at, 5000);
  EXPECT_EQ(table.words(), refused_at);
  EXPECT_TRUE(table.add("word0", 5, 1 << 20)) << "words that are there need no room";
  table.for_each([](std::string_view word, uint64_t count) { EXPECT_EQ(count, word == "word0" ? 6u : 1u); });
}

TEST(WordTable, SortsByBytes) {
  WordTable table;
  std::mt19937_64 random(4);
  std::set<std::string> expected{"", std::string(1, '\0'), std::string(8, '\0'), std::string(9, '\0'), "\xff",
                                 "z"};
  for (int i = 0; i < 2000; ++i) {
    std::string word(random() % 12, 'a');
    for (char& letter : word) letter = "\0a\x80"[random() % 3];
    expected.insert(word);
  }
  for (auto word = expected.rbegin(); word != expected.rend(); ++word) {
    table.add(*word, word->size() + 1, 1 << 24);
  }
  std::vector<std::string> sorted;
  for (const WordTable::Sorted& word : table.sorted()) {
    sorted.emplace_back(table.word(word));
    EXPECT_EQ(table.count(word), table.word(word).size() + 1);
  }
  EXPECT_EQ(sorted, std::vector<std::string>(expected.begin(), expected.end()));
}

TEST(WordRun, LeavesNoNameAndNoticesDamage) {
  const TemporaryFolder folder;
  const auto write = [](const WordRun::Visitor& visit) {
    visit("", 7);
    visit("apple", uint64_t{1} << 63);
    visit("apply", 1);
    visit(std::string(1000, 'b'), 128);
    visit(std::string(10000, 'c'), 1);
  };
  const WordRun run(system_files(), folder.path("run"), 4096, write);
  EXPECT_TRUE(system_files().list(folder.path()).empty()) << "a killed process would leave it behind";
  const Counts expected{{"", 7},
                        {"apple", uint64_t{1} << 63},
                        {"apply", 1},
                        {std::string(1000, 'b'), 128},
                        {std::string(10000, 'c'), 1}};
  const auto counts_of_run = [](const WordRun& read) {
    Counts counts;
    read.for_each([&](std::string_view word, uint64_t count) { counts[std::string(word)] = count; });
    return counts;
  };
  EXPECT_EQ(counts_of_run(run), expected);
  EXPECT_EQ(counts_of_run(run), expected) << "and once more";
  for (int64_t byte = 0; byte < 11'000; byte += 1 + byte / 16) {
    for (const int mask : {0x01, 0x80, 0xff}) {
      const BitFlip flip{"run", byte, static_cast<uint8_t>(mask)};
      FaultyFileEnvironment files(system_files(), {.flip = flip});
      const WordRun damaged(files, folder.path("run"), 4096, write);
      EXPECT_THROW(counts_of_run(damaged), Error) << "byte " << byte;
    }
  }
}

}  // namespace
}  // namespace athanor
