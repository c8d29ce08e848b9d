// Time: a monotonic clock for durations and time-outs, behind a seam so that tests need not wait.
//
// Hot paths (records of kernels) call `monotonic_ns()`; whatever waits or gives up after a while takes a
// `Clock&`. Called by every room. Thread safety: all functions may be called from several threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace athanor {

// Nanoseconds on CLOCK_MONOTONIC: since some start that is the same for all processes of this machine
// until it reboots. Never goes back; costs some 20 ns.
int64_t monotonic_ns();

// Nanoseconds since 1970 in UTC. May jump: for names and log lines, not for durations.
int64_t wall_clock_ns();

constexpr double seconds_of(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) * 1e-9;
}

class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t now_ns() = 0;
  virtual void sleep_until_ns(int64_t time) = 0;  // returns at once if `time` has passed
};

// The real one: `monotonic_ns`. It has no state.
Clock& monotonic_clock();

// Stands still but for `advance_ns` and `sleep_until_ns`, which moves it forward and returns at once.
class ManualClock final : public Clock {
 public:
  explicit ManualClock(int64_t now_ns = 0) : now_(now_ns) {}
  int64_t now_ns() override { return now_.load(); }
  void sleep_until_ns(int64_t time) override;
  void advance_ns(int64_t duration) { now_ += duration; }

 private:
  std::atomic<int64_t> now_;
};

}  // namespace athanor
