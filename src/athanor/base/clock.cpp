#include "athanor/base/clock.h"

#include <cerrno>
#include <ctime>

namespace athanor {
namespace {

constexpr int64_t ns_per_second = 1'000'000'000;

int64_t read_clock(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);  // cannot fail for these clocks
  return int64_t{time.tv_sec} * ns_per_second + int64_t{time.tv_nsec};
}

class MonotonicClock final : public Clock {
 public:
  int64_t now_ns() override { return monotonic_ns(); }
  void sleep_until_ns(int64_t time) override {
    if (time <= 0) return;
    const timespec until{static_cast<time_t>(time / ns_per_second), static_cast<long>(time % ns_per_second)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
    }
  }
};

}  // namespace

int64_t monotonic_ns() {
  return read_clock(CLOCK_MONOTONIC);
}

int64_t wall_clock_ns() {
  return read_clock(CLOCK_REALTIME);
}

Clock& monotonic_clock() {
  static MonotonicClock clock;
  return clock;
}

void ManualClock::sleep_until_ns(int64_t time) {
  int64_t now = now_.load();
  while (now < time && !now_.compare_exchange_weak(now, time)) {
  }
}

}  // namespace athanor
