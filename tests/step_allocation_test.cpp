// Nothing is allocated while a step runs: all memory of the process goes through the functions below, which
// count.

#include <gtest/gtest.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <thread>
#include <vector>

#include "athanor/train/engine.h"

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);
}

namespace {

std::atomic<bool> counting{false};
std::atomic<int64_t> by_caller{0}, by_others{0};
std::thread::id caller;

void count() noexcept {
  if (counting.load(std::memory_order_relaxed))
    ++(std::this_thread::get_id() == caller ? by_caller : by_others);
}

}  // namespace

extern "C" {
void* malloc(size_t size) noexcept {
  count();
  return __libc_malloc(size);
}
void* calloc(size_t number, size_t size) noexcept {
  count();
  return __libc_calloc(number, size);
}
void* realloc(void* pointer, size_t size) noexcept {
  count();
  return __libc_realloc(pointer, size);
}
void* aligned_alloc(size_t alignment, size_t size) noexcept {
  count();
  return __libc_memalign(alignment, size);
}
void* memalign(size_t alignment, size_t size) noexcept {
  count();
  return __libc_memalign(alignment, size);
}
int posix_memalign(void** pointer, size_t alignment, size_t size) noexcept {
  count();
  *pointer = __libc_memalign(alignment, size);
  return *pointer == nullptr ? ENOMEM : 0;
}
}

namespace athanor {
namespace {

EngineOptions options_of(const char* family, Precision precision) {
  EngineOptions options;
  options.model = family_defaults(family);
  options.model.layers = 2;
  options.model.width = 128;
  options.model.heads = 4;
  options.model.feed_forward = 256;
  options.model.vocabulary = 1000;
  options.model.maximum_positions = 96;
  options.model.window_pattern = {0, 20};
  options.compile.precision = precision;
  options.micro_batch = 2;
  options.micro_batch_counts = {2};
  options.sequence_length = 96;
  options.threads = 3;
  return options;
}

Batch batch_of(const EngineOptions& options, int64_t number) {
  Batch batch;
  batch.samples = options.micro_batch;
  batch.sequence_length = options.sequence_length;
  for (int64_t i = 0; i < batch.samples * batch.sequence_length; ++i) {
    batch.token_ids.push_back(static_cast<int32_t>((i * i + number) % options.model.vocabulary));
    batch.labels.push_back(static_cast<int32_t>((i * i + 2 * i + number) % options.model.vocabulary));
    batch.positions.push_back(static_cast<int32_t>(i % batch.sequence_length));
    batch.documents.push_back(static_cast<int32_t>(i % batch.sequence_length / 40));
  }
  batch.indices = whole_indices(batch.samples, batch.sequence_length);
  for (int64_t s = 0; s < batch.samples; ++s) batch.sample_ids.push_back(number * batch.samples + s);
  return batch;
}

TEST(StepAllocation, CountsWhatIsAllocated) {
  caller = std::this_thread::get_id();
  by_caller = by_others = 0;
  counting = true;
  std::free(std::malloc(100));
  const auto mine = std::make_shared<std::vector<Batch>>(100);
  std::thread([&] { mine->resize(1000); }).join();
  counting = false;
  EXPECT_GE(by_caller, 2);
  EXPECT_GE(by_others, 1);
}

TEST(StepAllocation, NothingIsAllocatedInAStep) {
  caller = std::this_thread::get_id();
  for (const char* family : {"gpt2", "llama"}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      for (const Recompute recompute : {Recompute::none, Recompute::full}) {
        EngineOptions options = options_of(family, precision);
        options.compile.recompute = recompute;
        options.compile.optimizer.kind =
            recompute == Recompute::none ? OptimizerKind::adamw : OptimizerKind::lamb;
        options.compile.optimizer.average_decay = 0.9;
        options.model.dropout = recompute == Recompute::none ? 0 : 0.1;
        Engine engine(options);
        engine.allocate();
        engine.initialise();
        const std::vector<Batch> batches{batch_of(options, 0), batch_of(options, 1)};
        by_caller = by_others = 0;
        for (int64_t step = 0; step < 3; ++step) {
          counting = true;
          const StepResult result = engine.train_step(batches, step, step, 1e-3);
          counting = false;
          EXPECT_FALSE(result.skipped);
        }
        EXPECT_EQ(by_others, 0) << family << " " << static_cast<int>(precision);
        // Before and after it: the list of micro-batches, and names of the scalars that are read.
        EXPECT_LE(by_caller, 3 * 4);
      }
    }
  }
}

}  // namespace
}  // namespace athanor
