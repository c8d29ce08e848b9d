#include "athanor/device/timed_device.h"

#include <errno.h>
#include <time.h>

#include <algorithm>

namespace athanor {
namespace {

void sleep_until(int64_t time_ns) {
  const timespec until{time_ns / 1'000'000'000, time_ns % 1'000'000'000};
  while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr) == EINTR) {
  }
}

TimeSpan take_time(const Task& task, ThreadTeam&, int64_t ready_ns) {
  const TimeSpan span{ready_ns, ready_ns + std::max<int64_t>(task.predicted_ns, 0)};
  if (span.end_ns > monotonic_ns()) sleep_until(span.end_ns);
  return span;
}

}  // namespace

// Its teams never run anything: one thread each, the stream's own.
TimedDevice::TimedDevice() : QueuedDevice(&take_time, 0, 1) {}

}  // namespace athanor
