#include "athanor/base/clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace athanor {
namespace {

TEST(Clock, MonotonicTimeIsNanosecondsAndNeverGoesBack) {
  int64_t last = monotonic_ns();
  for (int i = 0; i < 1000; ++i) {
    const int64_t now = monotonic_ns();
    ASSERT_GE(now, last);
    last = now;
  }
  // The same clock as the standard library's, so the unit is right.
  const int64_t before = monotonic_ns();
  const int64_t standard = std::chrono::duration_cast<std::chrono::nanoseconds>(
                               std::chrono::steady_clock::now().time_since_epoch())
                               .count();
  const int64_t after = monotonic_ns();
  EXPECT_LE(before, standard);
  EXPECT_LE(standard, after);
}

TEST(Clock, WallClockIsSince1970) {
  EXPECT_GT(wall_clock_ns(), int64_t{1'700'000'000} * 1'000'000'000);  // 2023
}

TEST(Clock, SleepsUntilAndNotShorter) {
  Clock& clock = monotonic_clock();
  const int64_t start = clock.now_ns();
  clock.sleep_until_ns(start + 3'000'000);
  const int64_t woken = clock.now_ns();
  EXPECT_GE(woken, start + 3'000'000);
  clock.sleep_until_ns(start);  // past: at once
  clock.sleep_until_ns(-5);
  EXPECT_LT(clock.now_ns() - woken, 1'000'000'000);
}

TEST(Clock, ManualClockMovesOnlyWhenTold) {
  ManualClock clock(100);
  EXPECT_EQ(clock.now_ns(), 100);
  clock.advance_ns(50);
  EXPECT_EQ(clock.now_ns(), 150);
  clock.sleep_until_ns(int64_t{3600} * 1'000'000'000);
  EXPECT_EQ(seconds_of(clock.now_ns()), 3600.0);
  clock.sleep_until_ns(10);
  EXPECT_EQ(seconds_of(clock.now_ns()), 3600.0);
}

}  // namespace
}  // namespace athanor
