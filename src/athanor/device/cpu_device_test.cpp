#include "athanor/device/cpu_device.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

// A task that calls `work`, which must live until the stream has passed it.
template <class Work>
Task task_of(Work& work, TimeSpan* span = nullptr) {
  return {[](void* argument, ThreadTeam& team) { (*static_cast<Work*>(argument))(team); }, &work, 0, span};
}

TEST(CpuDevice, RunsTasksInOrderOnTheirTeam) {
  CpuDevice device;
  Stream& stream = device.create_stream("compute", 3);
  std::vector<int> order;
  std::atomic<int> tiles{0};
  int next = 0;
  auto work = [&](ThreadTeam& team) {
    EXPECT_EQ(team.size(), 3);
    order.push_back(next++);
    team.parallel_for(7, [&](int64_t, int) { ++tiles; });
  };
  std::vector<TimeSpan> spans(20);
  for (auto& span : spans) stream.enqueue(task_of(work, &span));
  stream.synchronize();
  ASSERT_EQ(order.size(), 20U);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], i);
  EXPECT_EQ(tiles, 140);
  int64_t before = 0;
  for (const auto& span : spans) {
    EXPECT_GE(span.begin_ns, before);
    EXPECT_GE(span.end_ns, span.begin_ns);
    before = span.end_ns;
  }
  EXPECT_LE(before, monotonic_ns());
}

// More tasks than the queue holds.
TEST(CpuDevice, FullQueueBlocksTheFeeder) {
  CpuDevice device;
  Stream& stream = device.create_stream("compute", 1);
  int64_t calls = 0;
  auto work = [&](ThreadTeam&) { ++calls; };
  for (int i = 0; i < 20000; ++i) stream.enqueue(task_of(work));
  stream.synchronize();
  EXPECT_EQ(calls, 20000);
}

// Two streams hand a plain variable to and fro: only the events order them.
TEST(CpuDevice, EventsOrderStreams) {
  CpuDevice device;
  Stream& first = device.create_stream("first", 2);
  Stream& second = device.create_stream("second", 1);
  int64_t value = 0;
  auto twice = [&](ThreadTeam&) { value *= 2; };
  auto plus_one = [&](ThreadTeam&) { value += 1; };
  int64_t expected = 0;
  for (int i = 0; i < 500; ++i) {
    first.enqueue(task_of(plus_one));
    second.wait(first.record());
    second.enqueue(task_of(twice));
    first.wait(second.record());
    expected = (expected + 1) * 2;
    if (i % 40 == 39) {
      first.synchronize();
      EXPECT_EQ(value, expected);
      value = expected = 0;
    }
  }
  first.synchronize();
  EXPECT_EQ(value, expected);
}

TEST(CpuDevice, AStreamWaitsUntilTheEventIsReached) {
  CpuDevice device;
  Stream& slow = device.create_stream("slow", 1);
  Stream& fast = device.create_stream("fast", 1);
  auto sleep = [](ThreadTeam&) { std::this_thread::sleep_for(std::chrono::milliseconds(5)); };
  auto nothing = [](ThreadTeam&) {};
  TimeSpan slow_span, independent, dependent;
  slow.enqueue(task_of(sleep, &slow_span));
  const Event event = slow.record();
  fast.wait(Event{});  // reached from the start
  fast.enqueue(task_of(nothing, &independent));
  fast.wait(event);
  fast.enqueue(task_of(nothing, &dependent));
  fast.synchronize();
  slow.synchronize();
  EXPECT_GE(dependent.begin_ns, slow_span.end_ns);
  EXPECT_LT(independent.begin_ns, slow_span.end_ns);
}

TEST(CpuDevice, TheFirstErrorPassesOverTheRestAndIsRethrownOnce) {
  CpuDevice device;
  Stream& first = device.create_stream("first", 2);
  Stream& second = device.create_stream("second", 1);
  int after = 0;
  auto fail = [](ThreadTeam& team) {
    team.parallel_for(4, [](int64_t tile, int) {
      if (tile == 2) throw Error(ErrorKind::retry_step, "tile 2");
    });
  };
  auto work = [&](ThreadTeam&) { ++after; };
  for (int round = 0; round < 20; ++round) {
    after = 0;
    first.enqueue(task_of(fail));
    first.enqueue(task_of(work));
    second.wait(first.record());
    second.enqueue(task_of(work));
    try {
      second.synchronize();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::retry_step);
    }
    EXPECT_EQ(after, 0);
    EXPECT_NO_THROW(first.synchronize());
    first.enqueue(task_of(work));
    first.synchronize();
    EXPECT_EQ(after, 1);
  }
}

TEST(CpuDevice, EndsWithWorkLeft) {
  auto sleep = [](ThreadTeam&) { std::this_thread::sleep_for(std::chrono::milliseconds(1)); };
  for (int round = 0; round < 10; ++round) {
    CpuDevice device;
    Stream& first = device.create_stream("first", 2);
    Stream& second = device.create_stream("second", 2);
    for (int i = 0; i < 100; ++i) {
      first.enqueue(task_of(sleep));
      second.wait(first.record());
      second.enqueue(task_of(sleep));
      first.wait(second.record());
    }
  }
}

TEST(CpuDevice, MemoryIsAlignedAndZeroed) {
  CpuDevice device;
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{100}, int64_t{5} << 20}) {
    const auto memory = device.allocate(bytes);
    ASSERT_NE(memory, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(memory.get()) % 64, 0U);
    for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(memory.get()[i], std::byte{0});
    std::memset(memory.get(), 1, static_cast<size_t>(bytes));
  }
  try {
    (void)device.allocate(int64_t{1} << 50);
    ADD_FAILURE() << "a pebibyte";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_NE(error.message().find("1125899906842624"), std::string::npos);
  }
}

}  // namespace
}  // namespace athanor
