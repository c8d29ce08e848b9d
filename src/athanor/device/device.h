// A device: streams that run tasks in order, events that order streams, memory.
//
// Called by execute. Implementations: cpu_device.h (threads), timed_device.h (takes the predicted time,
// computes nothing). The only way to order work is an event.
// Thread safety: a stream is fed by one thread at a time; events may be waited for from anywhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "athanor/device/thread_team.h"

namespace athanor {

// When a task ran, on the monotonic clock (CLOCK_MONOTONIC nanoseconds).
struct TimeSpan {
  int64_t begin_ns = 0, end_ns = 0;
};

// One unit of work. Everything it points to must live until the stream has passed it.
struct Task {
  void (*run)(void* argument, ThreadTeam& team) = nullptr;
  void* argument = nullptr;
  int64_t predicted_ns = 0;  // what the timed device takes for it
  TimeSpan* span = nullptr;  // written when the task ends, if not null
};

// A point in a stream's sequence: reached when that many tasks have ended. Sequence 0 is reached from the
// start.
struct Event {
  int32_t stream = -1;
  uint64_t sequence = 0;
};

class Stream {
 public:
  virtual ~Stream() = default;
  virtual void enqueue(const Task& task) = 0;  // may block while the queue is full
  virtual void wait(Event event) = 0;          // later tasks of this stream start after `event`
  virtual Event record() = 0;                  // reached when all tasks enqueued so far have ended
  // Blocks until the queue is empty; rethrows the first error of the device, once. After an error the other
  // tasks of all streams of the device are passed over without running until it has been rethrown.
  virtual void synchronize() = 0;
};

class Device {
 public:
  virtual ~Device() = default;
  virtual std::string name() const = 0;
  // A stream whose tasks run on a team of `threads`, the stream's own thread counted.
  virtual Stream& create_stream(std::string name, int threads) = 0;
  // 64-byte aligned, zeroed memory (lazily backed where the system can); freed with the pointer. Throws a
  // user error with the bytes asked for when there is not enough.
  virtual std::shared_ptr<std::byte> allocate(int64_t bytes) = 0;
};

}  // namespace athanor
