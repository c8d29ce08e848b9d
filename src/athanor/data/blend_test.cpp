#include "athanor/data/blend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/base/error_test_support.h"
#include "athanor/base/philox.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<int64_t> whole(const std::vector<std::string>& decimals) {
  return whole_weights(decimals);
}

TEST(WholeWeights, AreExact) {
  EXPECT_THAT(whole({"0.7", "0.3"}), ElementsAre(7, 3));
  EXPECT_THAT(whole({"1", "1", "2"}), ElementsAre(1, 1, 2));
  EXPECT_THAT(whole({"0.001", "0.999"}), ElementsAre(1, 999));
  EXPECT_THAT(whole({"1", "1e-9", "0.5"}), ElementsAre(1'000'000'000, 1, 500'000'000));
  EXPECT_THAT(whole({"20", "0", "30.0"}), ElementsAre(2, 0, 3));
  EXPECT_THAT(whole({"1E+2", ".5"}), ElementsAre(200, 1));
  EXPECT_THAT(whole({"0.1", "0.2", "0.7"}), ElementsAre(1, 2, 7));
  EXPECT_THAT(whole({"123456789012345"}), ElementsAre(1));
  EXPECT_THAT(error_of([] { whole({"0", "0.0"}); }), HasSubstr("all weights are 0"));
  for (const char* wrong : {"", ".", "-1", "x", "1x", "1e", "1e9999", "nan", "inf", "1.2.3", "1 ", "0x10",
                            "99999999999999999999", "1e+-1"}) {
    EXPECT_THAT(error_of([&] { whole({"1", wrong}); }), HasSubstr("is no weight")) << wrong;
  }
  EXPECT_THAT(error_of([] { whole({"1", "1e-20"}); }), HasSubstr("too many digits"));
  EXPECT_THAT(error_of([] { whole({"9007199254740992", "9007199254740991"}); }),
              HasSubstr("too many digits"));
}

// Draws places 0 .. n - 1 in order and checks after each that every source is within its share rounded down
// and up, computed here with long doubles of exact products below 2^64.
void expect_exact(const std::vector<int64_t>& weights, int64_t n) {
  const BlendOrder order(weights);
  int64_t total = 0;
  for (const int64_t weight : weights) total += weight;
  std::vector<int64_t> counts(weights.size());
  for (int64_t place = 0; place < n; ++place) {
    const auto draw = order.draw(place);
    ASSERT_LT(draw.source, weights.size());
    ASSERT_EQ(draw.index, counts[draw.source]++);
    for (size_t i = 0; i < weights.size(); ++i) {
      const int64_t product = (place + 1) * weights[i];
      ASSERT_GE(counts[i], product / total) << "place " << place << " source " << i;
      ASSERT_LE(counts[i], (product + total - 1) / total) << "place " << place << " source " << i;
    }
  }
  EXPECT_EQ(order.counts(n), counts);
}

TEST(BlendOrder, SharesAreExact_P51_AnyWeightsAnyNumber) {
  expect_exact({1, 999}, 3000);
  expect_exact({500'000'000, 1, 499'999'999}, 3000);
  expect_exact({1}, 10);
  expect_exact({0, 3, 0, 2}, 100);
  expect_exact({1, 1, 2}, 100);
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const RandomKey key(trial, RandomPurpose::test, "blend");
    std::vector<int64_t> weights;
    const size_t sources = 1 + random_word(key, 0) % 12;
    for (size_t i = 0; i < sources; ++i) {
      const uint32_t word = random_word(key, i + 1);
      weights.push_back(1 + (word % 4 == 0 ? word % 10'000 : word % 10));
    }
    expect_exact(weights, 700);
  }
}

TEST(BlendOrder, ASourceThatIsNeverDrawn_P51_IsNoError) {
  const BlendOrder order(whole({"0.5", "1e-9", "0.5"}));
  EXPECT_THAT(order.counts(150), ElementsAre(75, 0, 75));
  const BlendOrder tiny(whole({"0.001", "0.999"}));
  const auto counts = tiny.counts(150);
  EXPECT_EQ(counts[0] + counts[1], 150);
  EXPECT_LE(counts[0], 1);
  EXPECT_EQ(tiny.most(1, 150), 150);
  EXPECT_EQ(tiny.most(0, 150), 1);
}

TEST(BlendOrder, AnyPlaceInAnyOrder) {
  const std::vector<int64_t> weights = {3, 7, 11, 2};
  const BlendOrder order(weights), other(weights);
  std::vector<BlendOrder::Draw> draws;
  for (int64_t n = 0; n < 500; ++n) draws.push_back(order.draw(n));
  for (int64_t i = 0; i < 500; ++i) {
    const int64_t n = i * 211 % 500;
    EXPECT_EQ(other.draw(n), draws[static_cast<size_t>(n)]) << n;
  }
  // So many that the sum of weights is never reached, forth and back.
  const BlendOrder wide(whole({"0.3", "1e-9", "0.7"}));
  std::vector<std::vector<int64_t>> counts;
  for (int64_t n = 0; n < 300'000; n += 1000) counts.push_back(wide.counts(n));
  for (const int64_t n : {299'000, 298'000, 100'000, 250'000, 4000, 4096 * 3, 299'000, 0}) {
    const auto found = wide.counts(n / 1000 * 1000);
    EXPECT_EQ(found, counts[static_cast<size_t>(n / 1000)]) << n;
    EXPECT_TRUE(wide.possible(n / 1000 * 1000, found));
  }
  // Far away it begins anew every 23 places.
  constexpr int64_t far = int64_t{1} << 60;
  const int64_t periods = far / 23;
  for (int64_t n = periods * 23; n < periods * 23 + 46; ++n) {
    const auto draw = other.draw(n), near = draws[static_cast<size_t>(n - periods * 23)];
    EXPECT_EQ(draw.source, near.source);
    EXPECT_EQ(draw.index, near.index + periods * weights[draw.source]);
  }
}

TEST(BlendOrder, GoesOnFromKnownCounts) {
  const auto weights = whole({"0.5", "0.3", "1e-9", "0.2"});
  const BlendOrder order(weights);
  const auto counts = order.counts(5000);
  EXPECT_TRUE(order.possible(5000, counts));
  EXPECT_FALSE(order.possible(5001, counts));
  EXPECT_FALSE(order.possible(5000, std::vector<int64_t>{2600, 1400, 0, 1000}));
  EXPECT_FALSE(order.possible(5000, std::vector<int64_t>{5000}));
  const BlendOrder later(weights, 5000, counts);
  for (int64_t n = 5000; n < 5200; ++n) EXPECT_EQ(later.draw(n), order.draw(n));
  EXPECT_EQ(later.draw(17), order.draw(17));
}

}  // namespace
}  // namespace athanor
