#include "athanor/train/sampling.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

RandomKey key_of(const SamplingOptions& options) {
  return {options.seed, RandomPurpose::generation, "test"};
}

int32_t draw_one(const std::vector<double>& logits, const SamplingOptions& options, int64_t draw) {
  return draw_token(logits, options, key_of(options), draw);
}

std::vector<double> frequencies(const std::vector<double>& logits, const SamplingOptions& options,
                                int64_t draws) {
  std::vector<double> result(logits.size());
  for (int64_t draw = 0; draw < draws; ++draw) {
    const int32_t token = draw_token(logits, options, key_of(options), draw);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, static_cast<int32_t>(logits.size()));
    result[static_cast<size_t>(token)] += 1 / static_cast<double>(draws);
  }
  return result;
}

TEST(DrawToken, FollowsTheSoftmax) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.5), std::log(0.15), std::log(0.25)};
  const auto plain = frequencies(logits, {.temperature = 1}, 40'000);
  // 0.01 is four standard deviations of 40000 draws.
  EXPECT_NEAR(plain[0], 0.1, 0.01);
  EXPECT_NEAR(plain[1], 0.5, 0.01);
  EXPECT_NEAR(plain[2], 0.15, 0.01);
  EXPECT_NEAR(plain[3], 0.25, 0.01);
  // Temperature a half squares the odds: 1, 25, 2.25, 6.25 of 34.5.
  const auto cold = frequencies(logits, {.temperature = 0.5}, 40'000);
  EXPECT_NEAR(cold[0], 1 / 34.5, 0.01);
  EXPECT_NEAR(cold[1], 25 / 34.5, 0.01);
  // Among the two likeliest.
  const auto two = frequencies(logits, {.temperature = 1, .top_k = 2}, 40'000);
  EXPECT_EQ(two[0] + two[2], 0);
  EXPECT_NEAR(two[1], 2.0 / 3, 0.01);
}

TEST(DrawToken, WithoutChanceTakesTheLikeliestAndTheFirstOfEquals) {
  EXPECT_EQ(draw_one({1, 3, 2, 3}, {.temperature = 0}, 0), 1);
  EXPECT_EQ(draw_one({1, 3, 2, 3}, {.temperature = 1, .top_k = 1}, 7), 1);
  EXPECT_EQ(draw_one({5}, {.temperature = 1}, 0), 0);
}

TEST(DrawToken, ExtremeLogitsAreNoProblem) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (int64_t draw = 0; draw < 100; ++draw)
    EXPECT_EQ(draw_one({1e300, -1e300, 0}, {.temperature = 1}, draw), 0);
  const auto masked = frequencies({-infinity, 0, -infinity, 0}, {.temperature = 1}, 2000);
  EXPECT_EQ(masked[0] + masked[2], 0);
  EXPECT_NEAR(masked[1], 0.5, 0.05);
  EXPECT_EQ(frequencies({1, 2, 3}, {.temperature = 1, .top_k = 100}, 1000).size(), 3u);
}

TEST(DrawToken, IsAFunctionOfSeedAndNumber) {
  const std::vector<double> logits(50, 0.0);
  std::vector<int32_t> first, again, other;
  for (int64_t draw = 0; draw < 20; ++draw) {
    first.push_back(draw_one(logits, {.temperature = 1, .seed = 1}, draw));
    again.push_back(draw_one(logits, {.temperature = 1, .seed = 1}, draw));
    other.push_back(draw_one(logits, {.temperature = 1, .seed = 2}, draw));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

// Probabilities 0.5, 0.25, 0.15, 0.1: the fewest that reach a share.
TEST(DrawToken, TopPTakesTheFewestThatReachIt) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.5), std::log(0.15), std::log(0.25)};
  const auto drawn = [&](const SamplingOptions& options) { return frequencies(logits, options, 20'000); };
  EXPECT_EQ(drawn({.temperature = 1, .top_p = 0.49})[1], drawn({.temperature = 0})[1]);
  const auto two = drawn({.temperature = 1, .top_p = 0.7});
  EXPECT_EQ(two[0] + two[2], 0);
  EXPECT_NEAR(two[1], 2.0 / 3, 0.015);
  const auto three = drawn({.temperature = 1, .top_p = 0.8});
  EXPECT_EQ(three[0], 0);
  EXPECT_NEAR(three[2], 0.15 / 0.9, 0.015);
  // Of the two likeliest the first has two thirds, which is enough.
  EXPECT_NEAR(drawn({.temperature = 1, .top_k = 2, .top_p = 0.6})[1], 1, 1e-9);
  // A flat distribution over many: as many as the share.
  const std::vector<double> flat(1000, 0.0);
  const auto some = frequencies(flat, {.temperature = 1, .top_p = 0.3005}, 20'000);
  for (size_t i = 0; i < 1000; ++i) EXPECT_EQ(some[i] == 0, i >= 301) << i;
}

TEST(DrawToken, RefusesWhatIsNoNumber) {
  EXPECT_THROW(draw_one({0, std::nan(""), 1}, {.temperature = 0}, 0), Error);
}

}  // namespace
}  // namespace athanor
