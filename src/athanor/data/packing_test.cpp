#include "athanor/data/packing.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/data/batch.h"
#include "athanor/data/data_test_support.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::vector<std::pair<int64_t, int64_t>>> windows(const PackedWindows& packed) {
  std::vector<std::vector<std::pair<int64_t, int64_t>>> all;
  for (int64_t window = 0; window < packed.window_count(); ++window) {
    all.emplace_back();
    for (const TokenRange& piece : packed.pieces(window)) all.back().emplace_back(piece.begin, piece.end);
  }
  return all;
}

TEST(PackedWindows, BestFitLongestFirst) {
  // Places 4, 0, 2, 6, 3, 1 in windows of 6: 6 | 4 + 2 | 3 + 1.
  const NumberedTokens tokens({5, 1, 3, 7, 4, 2});
  using Window = std::vector<std::pair<int64_t, int64_t>>;
  const PackedWindows packed(tokens, {0, 22}, 6);
  EXPECT_THAT(windows(packed),
              ElementsAre(Window{{9, 16}}, Window{{0, 5}, {6, 9}}, Window{{16, 20}, {20, 22}}));
  EXPECT_EQ(packed.places(), 16);
  // A range cuts documents at its borders.
  EXPECT_THAT(windows(PackedWindows(tokens, {2, 8}, 6)), ElementsAre(Window{{2, 5}, {6, 8}}));
}

TEST(PackedWindows, LongDocumentsAreCutSoThatNoLabelIsLost) {
  const NumberedTokens tokens({14});
  using Window = std::vector<std::pair<int64_t, int64_t>>;
  EXPECT_THAT(windows(PackedWindows(tokens, {0, 14}, 6)),
              ElementsAre(Window{{0, 7}}, Window{{6, 13}}, Window{{12, 14}}));
  EXPECT_THAT(windows(PackedWindows(tokens, {0, 13}, 6)), ElementsAre(Window{{0, 7}}, Window{{6, 13}}));
  EXPECT_THAT(windows(PackedWindows(tokens, {0, 7}, 6)), ElementsAre(Window{{0, 7}}));
}

// Every token but the first of each document is a label exactly once, and nothing overflows a window.
TEST(PackedWindows, EveryLabelOnceAndFewHoles) {
  const RandomKey key(3, RandomPurpose::test, "packing");
  for (const int64_t sequence : {1, 7, 64}) {
    std::vector<int64_t> lengths;
    for (uint64_t i = 0; i < 3000; ++i) {
      const uint32_t word = random_word(key, i);
      lengths.push_back(word % 7 == 0 ? word % 300 : word % 40);
    }
    const NumberedTokens tokens(lengths);
    const PackedWindows packed(tokens, {0, tokens.token_count()}, sequence);
    std::vector<int> labels(static_cast<size_t>(tokens.token_count()));
    for (int64_t window = 0; window < packed.window_count(); ++window) {
      int64_t places = 0;
      for (const TokenRange& piece : packed.pieces(window)) {
        places += piece.size() - 1;
        for (int64_t token = piece.begin + 1; token < piece.end; ++token)
          ++labels[static_cast<size_t>(token)];
        EXPECT_EQ(tokens.document_at(piece.begin).number, tokens.document_at(piece.end - 1).number);
      }
      EXPECT_LE(places, sequence);
      EXPECT_GT(places, 0);
    }
    for (int64_t token = 0; token < tokens.token_count(); ++token) {
      const bool first = tokens.document_at(token).begin == token;
      EXPECT_EQ(labels[static_cast<size_t>(token)], first ? 0 : 1) << token;
    }
    EXPECT_LT(static_cast<double>(packed.window_count() * sequence),
              1.02 * static_cast<double>(packed.places()) + 64);
  }
}

TEST(PackedSamples, PositionsAndDocumentsFollow) {
  auto tokens =
      std::make_shared<NumberedTokens>(std::vector<int64_t>{3, 4, 2}, 100, std::vector<TokenRange>{{4, 6}});
  const SampleSet set =
      SampleSet::packed(tokens, {0, 9}, {.sequence_length = 8, .shuffle = false, .name = "p"});
  EXPECT_TRUE(set.is_packed());
  EXPECT_EQ(set.sampler().samples_per_epoch(), 1);
  EXPECT_DOUBLE_EQ(set.padding(), 0.25);
  const Batch batch = set.cut(std::vector<int64_t>{0});
  EXPECT_THAT(batch.token_ids, ElementsAre(100, 101, 103, 104, 105, 107, 0, 0));
  EXPECT_THAT(batch.labels,
              ElementsAre(101, 102, ignored_label, ignored_label, 106, 108, ignored_label, ignored_label));
  EXPECT_THAT(batch.positions, ElementsAre(0, 1, 0, 1, 2, 0, 0, 1));
  EXPECT_THAT(batch.documents, ElementsAre(0, 0, 1, 1, 1, 2, 3, 3));
}

TEST(PackedSamples, EveryEpochHasEveryWindowOnce) {
  std::vector<int64_t> lengths(500, 5);
  const auto tokens = std::make_shared<NumberedTokens>(lengths);
  const SampleSet set = SampleSet::packed(tokens, {0, 2500}, {.sequence_length = 8, .seed = 1});
  ASSERT_EQ(set.sampler().samples_per_epoch(), 250);
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::set<int32_t> first;
    for (int64_t i = 0; i < 250; ++i)
      first.insert(set.cut(std::vector<int64_t>{epoch * 250 + i}).token_ids[0]);
    EXPECT_EQ(first.size(), 250U);
  }
}

TEST(PackedSamples, ShortDataIsRefused_P55_NumbersAreTold) {
  for (const std::vector<int64_t>& lengths : {std::vector<int64_t>{}, {1}, {1, 1, 1}}) {
    const auto tokens = std::make_shared<NumberedTokens>(lengths);
    try {
      SampleSet::packed(tokens, {0, tokens->token_count()}, {.sequence_length = 8});
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(),
                  HasSubstr(fmt::format("has {} tokens, which make 0 samples", lengths.size())));
    }
  }
  const auto two = std::make_shared<NumberedTokens>(std::vector<int64_t>{2});
  EXPECT_EQ(SampleSet::packed(two, {0, 2}, {.sequence_length = 8}).sampler().samples_per_epoch(), 1);
}

}  // namespace
}  // namespace athanor
