// Prepares the batches of the next steps on a thread of its own, so that no step waits for data.
//
// What a step gets depends on the consumed samples alone: sample ids count on from there, the batch
// size is a function of it. So the position to save is StepBatch::consumed_after() of the last finished
// step; what was prefetched beyond it counts for nothing. Called by train. Thread safety: one consumer.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "athanor/data/batch.h"

namespace athanor {

// All samples of one optimizer step, cut into micro-batches: samples [first_sample, first_sample + samples).
struct StepBatch {
  int64_t first_sample = 0, samples = 0;
  std::vector<Batch> micro_batches;
  int64_t consumed_after() const { return first_sample + samples; }
};

struct LoaderOptions {
  int64_t micro_batch = 1;     // samples of one micro-batch
  int64_t prefetch_steps = 4;  // steps held ready, at most
};

class Loader {
 public:
  // Global batch size, in samples, of the step that starts after `consumed` samples: a multiple of
  // micro_batch, or the step fails with a user error. Called on the loader's thread; must be pure.
  using BatchSize = std::function<int64_t(int64_t consumed)>;

  // Starts at global sample id `consumed_samples`.
  Loader(std::shared_ptr<const SampleReader> samples, LoaderOptions options, BatchSize batch_size,
         int64_t consumed_samples);
  ~Loader();  // stops the thread, whatever it is at
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next step's batch. An error of the loader's thread is thrown here, once, after the batches that
  // were complete before it; later calls throw that the loader has stopped.
  StepBatch next();
  // Samples of all batches that next() has returned, with those before the start.
  int64_t consumed_samples() const { return consumed_; }
  // Time that next() has spent waiting: near 0 when loading keeps up.
  int64_t waited_ns() const { return waited_ns_; }

 private:
  void work(int64_t position);
  StepBatch prepare(int64_t position) const;

  const std::shared_ptr<const SampleReader> samples_;
  const LoaderOptions options_;
  const BatchSize batch_size_;
  int64_t consumed_, waited_ns_ = 0;  // of the consumer

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<StepBatch> ready_;
  std::exception_ptr error_;
  bool failed_ = false, stop_ = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace athanor
