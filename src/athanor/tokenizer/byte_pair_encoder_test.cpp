#include "athanor/tokenizer/byte_pair_encoder.h"

#include <gtest/gtest.h>

#include <chrono>
#include <limits>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "athanor/tokenizer/tokenizer_test_support.h"

namespace athanor {
namespace {

// Merges word by word as the rule is written: of all pairs the lowest rank, leftmost.
std::vector<int32_t> merge_slowly(const TokenizerDefinition& definition, std::string_view text) {
  std::map<std::pair<int32_t, int32_t>, size_t> ranks;
  for (size_t rank = 0; rank < definition.merges.size(); ++rank) {
    ranks[{definition.merges[rank].left, definition.merges[rank].right}] = rank;
  }
  std::vector<int32_t> ids;
  for_each_word(definition.pattern, text, [&](std::string_view word) {
    std::vector<int32_t> units;
    for (const char c : word) {
      for (size_t id = 0; id < definition.tokens.size(); ++id) {
        if (definition.tokens[id] == std::string_view(&c, 1)) units.push_back(static_cast<int32_t>(id));
      }
    }
    while (true) {
      size_t best = 0, rank = std::numeric_limits<size_t>::max();
      for (size_t i = 0; i + 1 < units.size(); ++i) {
        const auto found = ranks.find({units[i], units[i + 1]});
        if (found != ranks.end() && found->second < rank) {
          best = i;
          rank = found->second;
        }
      }
      if (rank == std::numeric_limits<size_t>::max()) break;
      units[best] = definition.merges[rank].result;
      units.erase(units.begin() + static_cast<std::ptrdiff_t>(best) + 1);
    }
    ids.insert(ids.end(), units.begin(), units.end());
  });
  return ids;
}

// Merges between random tokens over four letters and a blank, so that ranks fight over every place.
TokenizerDefinition random_definition(uint64_t seed) {
  std::vector<std::pair<std::string, std::string>> merges;
  std::vector<std::string> tokens{"a", "b", "c", "d", " "};
  for (uint64_t i = 0; i < 60; ++i) {
    const std::string left = tokens[mix64(seed * 1000 + 2 * i) % tokens.size()];
    const std::string right = tokens[mix64(seed * 1000 + 2 * i + 1) % tokens.size()];
    if (left.size() + right.size() > 12) continue;
    merges.emplace_back(left, right);
    tokens.push_back(left + right);
  }
  return byte_definition(merges);
}

std::string random_letters(uint64_t seed, size_t count) {
  std::string text;
  for (size_t i = 0; i < count; ++i) text += "abcdaabb d"[mix64(seed * 7919 + i) % 10];
  return text;
}

TEST(BytePairEncoder, MergesAsTheRuleIsWritten) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const TokenizerDefinition definition = random_definition(seed);
    const BytePairEncoder encoder(definition);
    for (const size_t length : {0U, 1U, 2U, 7U, 15U, 16U, 17U, 31U, 32U, 63U, 64U, 65U, 200U, 700U}) {
      std::string text = random_letters(seed + length, length);
      // Once with words, once as one word; twice, so that remembered words are used.
      for (int round = 0; round < 4; ++round) {
        if (round == 2) std::replace(text.begin(), text.end(), ' ', 'c');
        std::vector<int32_t> ids;
        encoder.append(text, BytePairEncoder::Words::pattern, ids);
        ASSERT_EQ(ids, merge_slowly(definition, text)) << "seed " << seed << ", text " << text;
      }
    }
  }
}

TEST(BytePairEncoder, RememberedWordsOfAllLengthsAreToldApart) {
  // Words that share beginnings, ends and lengths, with zero bytes among them, many more than are remembered.
  const TokenizerDefinition definition = byte_definition({{"a", "a"}, {"aa", "a"}});
  const BytePairEncoder encoder(definition);
  std::string text;
  for (uint64_t i = 0; i < 60000; ++i) {
    text += ' ';
    text += std::string(1 + i % 35, 'a');
    text += static_cast<char>('a' + mix64(i) % 26);
    if (i % 5 == 0) text += std::string(1, '\0');
  }
  std::vector<int32_t> ids;
  encoder.append(text, BytePairEncoder::Words::pattern, ids);
  EXPECT_EQ(ids, merge_slowly(definition, text));
}

TEST(BytePairEncoder, AWordOfAMegabyteTakesMoments) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (size_t length = 1; length <= 64; length *= 2)
    merges.emplace_back(std::string(length, 'a'), std::string(length, 'a'));
  const BytePairEncoder encoder(byte_definition(merges));
  const std::string word(size_t{1} << 20, 'a');
  std::vector<int32_t> ids;
  const auto begin = std::chrono::steady_clock::now();
  encoder.append(word, BytePairEncoder::Words::pattern, ids);
  EXPECT_LT(std::chrono::steady_clock::now() - begin,
            std::chrono::seconds(20));  // by pairs for each merge: hours
  EXPECT_EQ(ids.size(), word.size() / 128);
}

TEST(BytePairEncoder, ThreadsShareOne) {
  const TokenizerDefinition definition = random_definition(3);
  const BytePairEncoder encoder(definition);
  const std::string text = random_letters(9, 20000);
  std::vector<int32_t> expected;
  encoder.append(text, BytePairEncoder::Words::pattern, expected);
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20; ++i) {
        result.clear();
        encoder.append(text, BytePairEncoder::Words::pattern, result);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

}  // namespace
}  // namespace athanor
