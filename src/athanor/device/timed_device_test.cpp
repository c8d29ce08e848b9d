#include "athanor/device/timed_device.h"

#include <gtest/gtest.h>

#include <vector>

namespace athanor {
namespace {

constexpr int64_t millisecond = 1'000'000;

Task task_of(int64_t predicted_ns, TimeSpan& span) {
  return {[](void*, ThreadTeam&) { ADD_FAILURE() << "a task ran"; }, nullptr, predicted_ns, &span};
}

TEST(TimedDevice, TasksTakeThePredictedTimeWithoutDrift) {
  TimedDevice device;
  Stream& stream = device.create_stream("compute", 8);
  const int64_t before = monotonic_ns();
  std::vector<TimeSpan> spans(200);
  for (size_t i = 0; i < spans.size(); ++i)
    stream.enqueue(task_of(i == 0 ? 5 * millisecond : 50'000, spans[i]));
  stream.synchronize();
  const int64_t after = monotonic_ns();
  EXPECT_GE(spans[0].begin_ns, before);
  for (size_t i = 1; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].end_ns - spans[i].begin_ns, 50'000);
    // Enqueued while the first one ran (unless the system stopped this thread for that long).
    EXPECT_GE(spans[i].begin_ns, spans[i - 1].end_ns);
  }
  EXPECT_GE(after, spans.back().end_ns);
  EXPECT_GE(after - before, 5 * millisecond + 199 * 50'000);
}

// Two streams side by side, then one that needs both: the time of the longer.
TEST(TimedDevice, StreamsOverlapAndEventsJoinThem) {
  TimedDevice device;
  Stream& compute = device.create_stream("compute", 1);
  Stream& copy = device.create_stream("copy", 1);
  TimeSpan product, transfer, use;
  compute.enqueue(task_of(20 * millisecond, product));
  copy.enqueue(task_of(40 * millisecond, transfer));
  compute.wait(copy.record());
  compute.enqueue(task_of(millisecond, use));
  compute.synchronize();
  EXPECT_EQ(use.begin_ns, transfer.end_ns);
  EXPECT_EQ(use.end_ns, use.begin_ns + millisecond);
  EXPECT_LT(product.begin_ns, transfer.end_ns);
  EXPECT_LT(transfer.begin_ns, product.end_ns);
  EXPECT_LE(use.end_ns, monotonic_ns());
}

}  // namespace
}  // namespace athanor
