#include "athanor/data/loader.h"

#include <chrono>
#include <numeric>
#include <utility>

#include "athanor/base/error.h"

namespace athanor {

Loader::Loader(std::shared_ptr<const SampleReader> samples, LoaderOptions options, BatchSize batch_size,
               int64_t consumed_samples)
    : samples_(std::move(samples)),
      options_(options),
      batch_size_(std::move(batch_size)),
      consumed_(consumed_samples) {
  ATHANOR_ASSERT(options.micro_batch >= 1 && options.prefetch_steps >= 1 && consumed_samples >= 0);
  thread_ = std::thread([this, consumed_samples] { work(consumed_samples); });
}

Loader::~Loader() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

StepBatch Loader::prepare(int64_t position) const {
  const int64_t size = batch_size_(position);
  if (size < 1 || size % options_.micro_batch != 0) {
    throw_user_error(fmt::format("the batch of {} samples after {} consumed ones does not divide into "
                                 "micro-batches of {}",
                                 size, position, options_.micro_batch),
                     "choose a batch size that is a multiple of the micro-batch");
  }
  StepBatch step{.first_sample = position, .samples = size, .micro_batches = {}};
  std::vector<int64_t> ids(static_cast<size_t>(options_.micro_batch));
  for (int64_t first = position; first < position + size; first += options_.micro_batch) {
    std::iota(ids.begin(), ids.end(), first);
    step.micro_batches.push_back(samples_->cut(ids));
  }
  return step;
}

void Loader::work(int64_t position) {
  std::exception_ptr error;
  try {
    for (;;) {
      StepBatch step = prepare(position);
      position = step.consumed_after();
      std::unique_lock lock(mutex_);
      changed_.wait(lock,
                    [&] { return stop_ || ready_.size() < static_cast<size_t>(options_.prefetch_steps); });
      if (stop_) return;
      ready_.push_back(std::move(step));
      changed_.notify_all();
    }
  } catch (...) {
    error = std::current_exception();
  }
  // Out of the handler, this thread holds the exception no longer: the consumer alone frees it.
  const std::lock_guard lock(mutex_);
  error_ = std::move(error);
  failed_ = true;
  changed_.notify_all();
}

StepBatch Loader::next() {
  const auto before = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return failed_ || !ready_.empty(); });
  waited_ns_ +=
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - before).count();
  if (ready_.empty()) {
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
    throw Error(ErrorKind::stop_job, "the loader has stopped after an error",
                "see the error before this one");
  }
  StepBatch step = std::move(ready_.front());
  ready_.pop_front();
  consumed_ = step.consumed_after();
  changed_.notify_all();
  return step;
}

}  // namespace athanor
