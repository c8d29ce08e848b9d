#include "athanor/device/cpu_device.h"

#include <climits>

namespace athanor {
namespace {

TimeSpan run_task(const Task& task, ThreadTeam& team, int64_t) {
  TimeSpan span;
  span.begin_ns = monotonic_ns();
  task.run(task.argument, team);
  span.end_ns = monotonic_ns();
  return span;
}

}  // namespace

CpuDevice::CpuDevice(int cores) : QueuedDevice(&run_task, cores, INT_MAX) {}

}  // namespace athanor
