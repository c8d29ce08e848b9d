#include "athanor/tokenizer/merge_learner.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "athanor/base/error.h"

namespace athanor {
namespace {

class Words final : public WordSource {
 public:
  explicit Words(std::vector<std::pair<std::string, uint64_t>> words) : words_(std::move(words)) {}
  int64_t words() const override { return static_cast<int64_t>(words_.size()); }
  int64_t bytes() const override {
    int64_t sum = 0;
    for (const auto& [word, count] : words_) sum += static_cast<int64_t>(word.size());
    return sum;
  }
  int64_t memory_bytes() const override { return 0; }
  void for_each(const Visitor& visit) const override {
    for (const auto& [word, count] : words_) visit(word, count);
  }
  const auto& all() const { return words_; }

 private:
  std::vector<std::pair<std::string, uint64_t>> words_;
};

LearnedVocabulary learn(const Words& words, const MergeLearnerOptions& options) {
  return learn_merges(std::make_unique<Words>(words), options);
}

// The rule word by word, with everything counted anew in each round.
LearnedVocabulary naive_merges(const Words& words, const MergeLearnerOptions& options) {
  LearnedVocabulary result;
  std::map<std::string, int32_t> ids;
  for (const uint8_t byte : byte_alphabet()) {
    const std::string text(1, static_cast<char>(byte));
    ids[text] = static_cast<int32_t>(result.tokens.size());
    result.tokens.push_back(text);
  }
  std::vector<std::pair<std::vector<int32_t>, int64_t>> rows;
  for (const auto& [word, count] : words.all()) {
    std::vector<int32_t> row;
    for (const char byte : word) row.push_back(ids.at(std::string(1, byte)));
    rows.emplace_back(row, static_cast<int64_t>(count));
  }
  while (static_cast<int64_t>(result.tokens.size()) < options.vocabulary) {
    std::map<std::pair<int32_t, int32_t>, int64_t> pairs;
    for (const auto& [row, count] : rows) {
      for (size_t i = 1; i < row.size(); ++i) pairs[{row[i - 1], row[i]}] += count;
    }
    std::pair<int32_t, int32_t> best;
    int64_t best_count = 0;
    for (const auto& [pair, count] : pairs) {  // in rising order, so that the first of equals stays
      const std::string text =
          result.tokens[static_cast<size_t>(pair.first)] + result.tokens[static_cast<size_t>(pair.second)];
      const auto& reserved = options.reserved;
      if (std::find(reserved.begin(), reserved.end(), text) != reserved.end()) continue;
      if (count > best_count) {
        best = pair;
        best_count = count;
      }
    }
    if (best_count == 0) break;
    const std::string text =
        result.tokens[static_cast<size_t>(best.first)] + result.tokens[static_cast<size_t>(best.second)];
    const auto [place, added] = ids.try_emplace(text, static_cast<int32_t>(result.tokens.size()));
    if (added) result.tokens.push_back(text);
    result.merges.push_back({best.first, best.second, place->second, best_count});
    for (auto& [row, count] : rows) {
      std::vector<int32_t> merged;
      for (size_t i = 0; i < row.size(); ++i) {
        if (i + 1 < row.size() && row[i] == best.first && row[i + 1] == best.second) {
          merged.push_back(place->second);
          ++i;
        } else {
          merged.push_back(row[i]);
        }
      }
      row = merged;
    }
  }
  return result;
}

std::vector<std::string> lines(const LearnedVocabulary& learned) {
  std::vector<std::string> lines;
  for (const LearnedMerge& merge : learned.merges) {
    lines.push_back(fmt::format("{} {} -> {} x {}", merge.left, merge.right, merge.result, merge.count));
  }
  return lines;
}

Words random_words(std::mt19937_64& random, size_t words, size_t letters, size_t longest, uint64_t greatest) {
  std::vector<std::pair<std::string, uint64_t>> result;
  for (size_t i = 0; i < words; ++i) {
    std::string word;
    const size_t length = random() % (longest + 1);
    for (size_t j = 0; j < length; ++j) word += static_cast<char>('a' + random() % letters);
    result.emplace_back(word, random() % (greatest + 1));
  }
  return Words(std::move(result));
}

TEST(MergeLearner, EqualsCountingAnewInEachRound) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 40; ++round) {
    const size_t letters = 1 + random() % 5;
    const Words words = random_words(random, random() % 200, letters, 1 + random() % 30,
                                     round % 3 == 0 ? 1 : 1 + random() % 50);
    MergeLearnerOptions options;
    options.vocabulary = 256 + static_cast<int64_t>(random() % 150);
    if (round % 4 == 0) options.reserved = {"ab", "aab", "ba"};
    const LearnedVocabulary expected = naive_merges(words, options);
    for (const int threads : {1, 3}) {
      options.threads = threads;
      options.symbols_per_thread = 64;
      const LearnedVocabulary learned = learn(words, options);
      ASSERT_EQ(lines(learned), lines(expected)) << "round " << round << ", threads " << threads;
      ASSERT_EQ(learned.tokens, expected.tokens);
    }
  }
}

TEST(MergeLearner, MergesThatSpellTheSameTextShareAnId) {
  // "abc" arises as ab-c and as a-bc.
  const Words words({{"abc", 10}, {"xab", 5}, {"abcx", 1}, {"abd", 9}, {"bcq", 30}, {"bcab", 3}});
  MergeLearnerOptions options;
  options.vocabulary = 270;
  const LearnedVocabulary learned = learn(words, options);
  EXPECT_EQ(lines(learned), lines(naive_merges(words, options)));
  std::set<std::string> distinct(learned.tokens.begin(), learned.tokens.end());
  EXPECT_EQ(distinct.size(), learned.tokens.size());
}

// 64,000 bytes with little room: blocks of many words, and pairs left out for a while.
TEST(MergeLearner, P120_LittleMemoryChangesNoMerge) {
  std::mt19937_64 random(2);
  const Words words = random_words(random, 8000, 26, 16, 3);
  MergeLearnerOptions options;
  options.vocabulary = 500;
  const LearnedVocabulary plenty = learn(words, options);
  ASSERT_EQ(plenty.tokens.size(), 500u);
  for (const int64_t memory : {700'000, 900'000, 2'000'000}) {
    for (const int threads : {1, 2}) {
      options.memory_bytes = memory;
      options.threads = threads;
      options.symbols_per_thread = 1 << 12;
      EXPECT_EQ(lines(learn(words, options)), lines(plenty)) << memory << " bytes, threads " << threads;
    }
  }
}

// Long words of few letters: a pair is at so many places that the lists of one merge outgrow the memory.
TEST(MergeLearner, P120_LittleMemoryForTextWithoutBlanks) {
  std::mt19937_64 random(7);
  std::vector<std::pair<std::string, uint64_t>> long_words;
  for (int i = 0; i < 200; ++i) {
    std::string word;
    while (word.size() < 1000)
      word += random() % 4 < 3 ? "ab" : std::string(1, static_cast<char>('c' + random() % 20));
    long_words.emplace_back(word, 1 + random() % 2);
  }
  const Words words(std::move(long_words));
  MergeLearnerOptions options;
  options.vocabulary = 330;
  const LearnedVocabulary plenty = learn(words, options);
  EXPECT_EQ(lines(plenty), lines(naive_merges(words, options)));
  for (const int64_t memory : {900'000, 1'500'000}) {
    for (const int threads : {1, 3}) {
      options.memory_bytes = memory;
      options.threads = threads;
      options.symbols_per_thread = 1 << 12;
      EXPECT_EQ(lines(learn(words, options)), lines(plenty)) << memory << " bytes, threads " << threads;
    }
  }
}

TEST(MergeLearner, P120_RefusesWhatDoesNotFitBeforeItBegins) {
  class Endless final : public WordSource {
   public:
    int64_t words() const override { return 100'000'000; }
    int64_t bytes() const override { return 3'000'000'000; }
    int64_t memory_bytes() const override { return 0; }
    void for_each(const Visitor&) const override { ADD_FAILURE() << "read though it cannot fit"; }
  };
  MergeLearnerOptions options;
  options.vocabulary = 4096;
  options.memory_bytes = 4'000'000'000;
  try {
    learn_merges(std::make_unique<Endless>(), options);
    FAIL() << "not refused";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_THAT(error.message(), testing::HasSubstr("100000000 different words (3000.0 MB) need"));
    EXPECT_THAT(error.message(), testing::HasSubstr("the limit is 4000.0 MB"));
  }
}

TEST(MergeLearner, P118_CountsBeyond32Bits) {
  const Words words({{"the", 4294967297}, {"xyz", 5}});
  MergeLearnerOptions options;
  options.vocabulary = 260;
  const LearnedVocabulary learned = learn(words, options);
  EXPECT_EQ(learned.tokens[256], "he");  // of h-e and t-h, equally often, the smaller left id
  EXPECT_EQ(learned.tokens[257], "the");
  EXPECT_EQ(learned.merges[0].count, 4294967297);
  EXPECT_EQ(learned.merges[1].count, 4294967297);
  EXPECT_EQ(learned.merges[2].count, 5);
}

TEST(MergeLearner, RefusesCountsBeyond63Bits) {
  MergeLearnerOptions options;
  options.vocabulary = 260;
  EXPECT_THROW(learn(Words({{"the", uint64_t{1} << 63}}), options), Error);
  EXPECT_THROW(learn(Words({{"the", uint64_t{1} << 61}, {"xyz", uint64_t{1} << 61}}), options), Error);
}

TEST(MergeLearner, EndsWhereNoPairIsLeft) {
  MergeLearnerOptions options;
  options.vocabulary = 1000;
  EXPECT_EQ(learn(Words({}), options).tokens.size(), 256u);
  EXPECT_EQ(learn(Words({{"", 3}, {"a", 7}}), options).merges.size(), 0u);
  const LearnedVocabulary learned = learn(Words({{"aaaaaaaa", 1}}), options);
  EXPECT_EQ(learned.tokens.size(), 259u);
  EXPECT_EQ(learned.tokens.back(), "aaaaaaaa");
}

TEST(MergeLearner, LargeVocabulariesHaveWiderIds) {
  std::mt19937_64 random(3);
  const Words words = random_words(random, 100, 3, 20, 9);
  MergeLearnerOptions options;
  options.vocabulary = 100'000;
  const LearnedVocabulary wide = learn(words, options);
  EXPECT_EQ(lines(wide), lines(naive_merges(words, options)));
}

TEST(MergeLearner, AlphabetIsThatOfGpt2) {
  const auto alphabet = byte_alphabet();
  EXPECT_EQ(alphabet[0], '!');
  EXPECT_EQ(alphabet[93], '~');
  EXPECT_EQ(alphabet[94], 0xa1);
  EXPECT_EQ(alphabet[188], 0x00);
  EXPECT_EQ(alphabet[220], ' ');
  EXPECT_EQ(alphabet[255], 0xad);
  EXPECT_EQ(std::set<int>(alphabet.begin(), alphabet.end()).size(), 256u);
}

}  // namespace
}  // namespace athanor
