#include "athanor/observe/loss_history.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "athanor/observe/loss_test_support.h"

namespace athanor {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr double infinity = std::numeric_limits<double>::infinity();

TEST(LossHistory, HoldsShortRunsStepByStep) {
  const LossHistory history = history_of(1000);
  ASSERT_EQ(history.buckets().size(), 1000U);
  EXPECT_EQ(history.buckets()[41].first_step, 42);
  EXPECT_EQ(history.buckets()[41].count, 1);
}

TEST(LossHistory, MergesLongRunsWithoutLosingAStep) {
  LossHistory history;
  const int64_t steps = 100'000;
  double sum = 0, least = infinity, greatest = -infinity;
  for (int64_t step = 1; step <= steps; ++step) {
    const double loss = falling(step) + std::sin(static_cast<double>(step));
    history.add(step, loss);
    sum += loss;
    least = std::min(least, loss);
    greatest = std::max(greatest, loss);
  }
  EXPECT_LE(history.buckets().size(), LossHistory::most_buckets);
  EXPECT_GE(history.buckets().size(), LossHistory::most_buckets / 2);
  double total = 0, low = infinity, high = -infinity;
  int64_t count = 0, next = 1;
  for (const auto& bucket : history.buckets()) {
    EXPECT_EQ(bucket.first_step, next);
    next = bucket.last_step + 1;
    total += bucket.sum;
    count += bucket.count;
    low = std::min(low, bucket.least);
    high = std::max(high, bucket.greatest);
  }
  EXPECT_EQ(count, steps);
  EXPECT_EQ(next, steps + 1);
  EXPECT_NEAR(total, sum, 1e-6);
  EXPECT_EQ(low, least);
  EXPECT_EQ(high, greatest);
}

TEST(LossHistory, KeepsFirstAndLastValidationAndBoundsTheRest) {
  LossHistory history;
  for (int64_t step = 0; step <= 10'000; ++step) history.add_validation(step, "a", falling(step));
  for (int set = 0; set < 100; ++set) history.add_validation(1, fmt::format("set {}", set), 1.0);
  const auto& points = history.validations()[0].points;
  EXPECT_LE(points.size(), LossHistory::most_validation_points);
  EXPECT_GE(points.size(), LossHistory::most_validation_points / 2);
  EXPECT_EQ(points.front().step, 0);
  EXPECT_EQ(points.back().step, 10'000);
  for (size_t i = 1; i < points.size(); ++i) EXPECT_GT(points[i].step, points[i - 1].step);
  EXPECT_EQ(history.validations().size(), LossHistory::most_validation_sets);
}

TEST(LossHistory, CountsLossesThatAreNotFinite) {
  LossHistory history;
  history.add(1, 2.0);
  history.add(2, nan);
  history.add(3, infinity);
  history.add(4, 1e300);
  history.add_validation(4, "a", nan);
  EXPECT_EQ(history.non_finite(), 3);
  EXPECT_EQ(history.last_non_finite_step(), 4);
  EXPECT_EQ(history.buckets().size(), 1U);
  EXPECT_EQ(history.last_step(), 4);
}

}  // namespace
}  // namespace athanor
