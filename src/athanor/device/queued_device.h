// What the CPU device and the timed device have in common: streams with a thread and a bounded queue each,
// events between them, the first error of the device, memory.
//
// Called by cpu_device and timed_device, which differ in how one task is performed. Thread safety: as Device;
// create_stream and allocate from any thread.
#pragma once

#include <atomic>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/device/device.h"

namespace athanor {

class QueuedStream;

class QueuedDevice : public Device {
 public:
  // Performs a task and says when it ran. `ready_ns` is when the task could have begun at the earliest: it
  // had been enqueued, the task before it and every event waited for had been reached.
  using Perform = TimeSpan (*)(const Task& task, ThreadTeam& team, int64_t ready_ns);

  // `cores`: as ThreadTeam's, for every team of the device; no team gets more than `most_team_threads`.
  QueuedDevice(Perform perform, int cores, int most_team_threads);
  // Tasks that have not begun are passed over; those under way end first.
  ~QueuedDevice() override;

  Stream& create_stream(std::string name, int threads) override;
  std::shared_ptr<std::byte> allocate(int64_t bytes) override;

 private:
  friend class QueuedStream;
  QueuedStream& stream(int32_t index);
  void fail(std::exception_ptr error);
  bool passes_over() const { return failed_.load(std::memory_order_acquire) || stopping(); }
  bool stopping() const { return stopping_.load(std::memory_order_seq_cst); }
  // Rethrows the first error after every stream has passed what it held.
  void rethrow_error();

  const Perform perform_;
  const int cores_, most_team_threads_;
  std::atomic<bool> failed_{false}, stopping_{false};
  std::mutex mutex_;  // guards error_ and streams_
  std::exception_ptr error_;
  std::vector<std::unique_ptr<QueuedStream>> streams_;
};

}  // namespace athanor
