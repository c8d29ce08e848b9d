#include "athanor/observe/loss_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "athanor/observe/loss_test_support.h"
#include "athanor/observe/svg_chart.h"
#include "athanor/observe/terminal_chart.h"

namespace athanor {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(RoundTicks, AreRoundAndInside) {
  const auto labels = [](double low, double high, int count, bool whole) {
    std::string text;
    for (const auto& tick : round_ticks(low, high, count, whole)) {
      EXPECT_GE(tick.value, low - 1e-9);
      EXPECT_LE(tick.value, high + 1e-9);
      text += tick.label + " ";
    }
    return text;
  };
  EXPECT_EQ(labels(0, 2000, 5, true), "0 500 1000 1500 2000 ");
  EXPECT_EQ(labels(0, 3, 8, true), "0 1 2 3 ");
  EXPECT_EQ(labels(0, 1, 8, true), "0 1 ");
  EXPECT_EQ(labels(0, 40000, 5, true), "0 10k 20k 30k 40k ");
  EXPECT_EQ(labels(0, 2.5e6, 5, true), "0 500k 1M 1.5M 2M 2.5M ");
  EXPECT_EQ(labels(1.43, 6.7, 6, false), "2 3 4 5 6 ");
  EXPECT_EQ(labels(1.4312, 1.4329, 5, false), "1.4315 1.4320 1.4325 ");
  EXPECT_EQ(labels(-0.3, 0.3, 6, false), "-0.3 -0.2 -0.1 0.0 0.1 0.2 0.3 ");
  EXPECT_EQ(labels(0, 9e18, 3, true), "0 5e+09B ");
}

TEST(Smooth, FollowsASteepStartAndAveragesNoise) {
  const LossHistory history = history_of(1000);
  const auto line = smooth(history.buckets(), 20);
  ASSERT_EQ(line.size(), 1000U);
  EXPECT_EQ(line[0].y, history.buckets()[0].sum);
  for (size_t i = 100; i < 900; ++i) EXPECT_NEAR(line[i].y, falling(static_cast<int64_t>(i) + 1), 0.02);
  const auto same = smooth(history.buckets(), 0);
  for (size_t i = 0; i < 1000; ++i) EXPECT_NEAR(same[i].y, history.buckets()[i].sum, 1e-9);
}

TEST(LossChart, SpikesAreCutOffAndMarked) {
  LossHistory history;
  for (int64_t step = 1; step <= 500; ++step) history.add(step, step == 250 ? 80.0 : falling(step));
  const LossChart chart = make_loss_chart(history, "run", 0);
  EXPECT_LT(chart.loss.high, 6.0);
  EXPECT_GT(chart.loss.high, falling(1));
  EXPECT_THAT(chart.spikes, testing::ElementsAre(250.0));
  // A run that stays high is shown whole.
  for (int64_t step = 501; step <= 600; ++step) history.add(step, 80.0);
  EXPECT_GT(make_loss_chart(history, "run", 0).loss.high, 80.0);
}

TEST(LossChart, RangesHoldForDegenerateRuns) {
  LossHistory empty, one, flat, zero, broken;
  one.add(1, 3.0);
  for (int64_t step = 1; step <= 100; ++step) flat.add(step, 2.0);
  for (int64_t step = 1; step <= 100; ++step) zero.add(step, 0.0);
  broken.add(1, nan);
  for (const auto* history : {&empty, &one, &flat, &zero, &broken}) {
    const LossChart chart = make_loss_chart(*history, "run", 0);
    EXPECT_LT(chart.loss.low, chart.loss.high);
    EXPECT_LT(chart.step.low, chart.step.high);
    EXPECT_FALSE(render_svg(chart).empty());
    for (const int width : {1, 40, 300}) {
      for (const int height : {1, 10, 100}) {
        const TerminalChartOptions options{.width = width, .height = height};
        EXPECT_FALSE(render_terminal_chart(chart, options).empty());
      }
    }
  }
}

}  // namespace
}  // namespace athanor
