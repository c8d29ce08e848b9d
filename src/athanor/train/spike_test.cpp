#include "athanor/train/spike.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "athanor/base/error.h"

namespace athanor {
namespace {

// 24 steps whose losses are 3 and 5 by turns, and norms 1 and 2: mean 4 and 1.5, deviation sqrt(24 / 23) and
// half.
SpikeDetector after_24_steps(SpikeOptions options) {
  SpikeDetector detector(options);
  for (int step = 0; step < 24; ++step) {
    EXPECT_EQ(detector.judge(step % 2 == 0 ? 3 : 5, step % 2 == 0 ? 1 : 2), "");
  }
  return detector;
}

TEST(Spike, LimitIsMeanAndDeviations) {
  const SpikeDetector detector = after_24_steps({.policy = SpikePolicy::warn, .z_score = 3, .window = 100});
  const double deviation = std::sqrt(24.0 / 23);
  EXPECT_DOUBLE_EQ(detector.loss_limit(), 4 + 3 * deviation);
  EXPECT_DOUBLE_EQ(detector.norm_limit(), 1.5 + 3 * deviation / 2);
}

TEST(Spike, NamesWhatIsBeyondItsLimitAndKeepsItOut) {
  SpikeDetector detector = after_24_steps({.policy = SpikePolicy::stop, .z_score = 3, .window = 100});
  const double loss = detector.loss_limit(), norm = detector.norm_limit();
  EXPECT_EQ(SpikeDetector(detector).judge(loss, norm), "");  // the limit itself is allowed
  EXPECT_EQ(detector.judge(100, 1).substr(0, 18), "loss spike (100 > ");
  EXPECT_EQ(detector.loss_limit(), loss);
  EXPECT_NE(detector.norm_limit(), norm);  // the norm was ordinary
  EXPECT_EQ(detector.judge(4, 50).substr(0, 26), "gradient norm spike (50 > ");
  EXPECT_EQ(detector.in_a_row(), 2);
  EXPECT_EQ(detector.judge(4, 1), "");
  EXPECT_EQ(detector.in_a_row(), 0);
}

TEST(Spike, NeedsSomeStepsFirst) {
  SpikeDetector detector({.policy = SpikePolicy::warn, .z_score = 3, .window = 100});
  for (int step = 0; step < 19; ++step) EXPECT_EQ(detector.judge(step == 10 ? 1e6 : 1, 1), "");
  SpikeDetector short_window({.policy = SpikePolicy::warn, .z_score = 3, .window = 10});
  for (int step = 0; step < 10; ++step) EXPECT_EQ(short_window.judge(1, 1), "");
  EXPECT_NE(short_window.judge(2, 1), "");
}

TEST(Spike, LooksBackOverTheWindowOnly) {
  SpikeDetector detector({.policy = SpikePolicy::warn, .z_score = 3, .window = 30});
  for (int step = 0; step < 30; ++step) detector.judge(step % 2 == 0 ? 90 : 110, 1);
  for (int step = 0; step < 30; ++step) EXPECT_EQ(detector.judge(step % 2 == 0 ? 0.9 : 1.1, 1), "");
  EXPECT_NE(detector.judge(90, 1), "");
}

TEST(Spike, OffIsOff) {
  SpikeDetector detector = after_24_steps({.policy = SpikePolicy::off, .z_score = 3, .window = 100});
  EXPECT_EQ(detector.judge(1e9, 1e9), "");
}

// A value that is not finite is for others to handle; it must not spoil the statistics.
TEST(Spike, StatisticsStayFinite) {
  SpikeDetector detector = after_24_steps({.policy = SpikePolicy::warn, .z_score = 3, .window = 100});
  const double limit = detector.loss_limit();
  detector.judge(std::numeric_limits<double>::quiet_NaN(), 1);
  detector.judge(std::numeric_limits<double>::infinity(), 1);
  EXPECT_EQ(detector.loss_limit(), limit);
}

// Warnings for ever would say nothing.
TEST(Spike, AnotherLevelEndsTheWarnings) {
  SpikeDetector detector = after_24_steps({.policy = SpikePolicy::warn, .z_score = 3, .window = 100});
  int warnings = 0;
  for (int step = 0; step < 100; ++step) warnings += detector.judge(50 + step % 2, 1).empty() ? 0 : 1;
  EXPECT_EQ(warnings, SpikeDetector::most_in_a_row + 1);
  EXPECT_NE(detector.judge(100, 1), "");
  // Where steps are left out on its word, the loop must be able to see it.
  SpikeDetector skipping = after_24_steps({.policy = SpikePolicy::skip, .z_score = 3, .window = 100});
  for (int step = 0; step < 100; ++step) EXPECT_NE(skipping.judge(50, 1), "");
  EXPECT_EQ(skipping.in_a_row(), 100);
}

TEST(Spike, StateIsRestoredExactly) {
  const SpikeOptions options{.policy = SpikePolicy::warn, .z_score = 3, .window = 100};
  SpikeDetector detector(options);
  for (int step = 0; step < 40; ++step) detector.judge(1 / (3.0 + step), std::sqrt(2.0 + step));
  detector.judge(100, 1);
  SpikeDetector restored(options);
  restored.restore(detector.to_text());
  EXPECT_EQ(restored.to_text(), detector.to_text());
  EXPECT_EQ(restored.loss_limit(), detector.loss_limit());
  EXPECT_EQ(restored.norm_limit(), detector.norm_limit());
  EXPECT_EQ(restored.in_a_row(), 1);
  SpikeDetector empty(options);
  empty.restore(SpikeDetector(options).to_text());
  EXPECT_EQ(empty.loss_limit(), std::numeric_limits<double>::infinity());
  // The last ten are within a shorter window.
  SpikeDetector shorter({.policy = SpikePolicy::warn, .z_score = 3, .window = 10});
  shorter.restore(detector.to_text());
  EXPECT_LT(shorter.loss_limit(), detector.loss_limit());
}

TEST(Spike, OtherTextIsRefused) {
  SpikeDetector detector({});
  for (const char* text :
       {"", "0", "0 0", "x 0 0", "0 2 0 1.5", "0 1 1 1.5", "0 0 0 1", "0 0 0 junk", "0 1 0 abc",
        "0 999999999999 0 1", "0 -1 0", "0 18446744073709551616 0", "0 1 0 nan extra"}) {
    EXPECT_THROW(detector.restore(text), Error) << text;
  }
}

}  // namespace
}  // namespace athanor
