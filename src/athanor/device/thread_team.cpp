#include "athanor/device/thread_team.h"

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/device/signal.h"

namespace athanor {
namespace {

constexpr size_t cache_line = 64;

}  // namespace

int available_cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

// A job is published in `job`: its number in the upper half, the tiles nobody has claimed in the lower one.
// Claiming is one compare-exchange from (number, n) to (number, n - 1). It can only succeed while that job
// still has a tile to do, so a worker that wakes late, or not at all, is neither waited for nor able to
// mix up two jobs; the fields it read meanwhile are discarded when the exchange fails.
struct ThreadTeam::State {
  alignas(cache_line) std::atomic<uint64_t> job{0};
  std::atomic<Function> function{nullptr};
  std::atomic<void*> context{nullptr};
  std::atomic<int64_t> first_tile{0};
  std::atomic<uint32_t> tiles{0};

  alignas(cache_line) std::atomic<int64_t> unfinished{0};
  std::atomic<bool> failed{false};
  Signal finished;

  alignas(cache_line) std::atomic<bool> stop{false};
  Signal called;

  alignas(cache_line) std::atomic<bool> busy{false};
  bool may_spin = false;
  std::mutex failure_mutex;
  std::exception_ptr failure;
  std::vector<std::thread> workers;

  static uint32_t unclaimed(uint64_t value) { return static_cast<uint32_t>(value); }

  void run_tile(Function call_tile, void* argument, int64_t tile, int thread) noexcept {
    if (failed.load(std::memory_order_relaxed)) return;
    try {
      call_tile(argument, tile, thread);
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      failed.store(true, std::memory_order_relaxed);
    }
  }

  // Claims and runs tiles until none is left.
  void take_part(int thread) {
    int64_t done = 0;
    uint64_t value = job.load(std::memory_order_acquire);
    while (unclaimed(value) > 0) {
      const Function call_tile = function.load(std::memory_order_relaxed);
      void* const argument = context.load(std::memory_order_relaxed);
      const int64_t tile = first_tile.load(std::memory_order_relaxed) +
                           (tiles.load(std::memory_order_relaxed) - unclaimed(value));
      if (!job.compare_exchange_weak(value, value - 1, std::memory_order_acq_rel, std::memory_order_acquire))
        continue;
      run_tile(call_tile, argument, tile, thread);
      ++done;
      value = job.load(std::memory_order_acquire);
    }
    // The job cannot end before this, so all of `done` belongs to the one whose counter just read zero.
    if (done > 0 && unfinished.fetch_sub(done, std::memory_order_seq_cst) == done) finished.notify();
  }

  void work(int thread) {
    while (!stop.load(std::memory_order_acquire)) {
      called.wait(may_spin, [this] {
        return unclaimed(job.load(std::memory_order_seq_cst)) > 0 || stop.load(std::memory_order_seq_cst);
      });
      take_part(thread);
    }
  }

  void dispatch(int64_t first, uint32_t count, Function call_tile, void* argument) {
    function.store(call_tile, std::memory_order_relaxed);
    context.store(argument, std::memory_order_relaxed);
    first_tile.store(first, std::memory_order_relaxed);
    tiles.store(count, std::memory_order_relaxed);
    unfinished.store(count, std::memory_order_relaxed);
    const uint64_t number = (job.load(std::memory_order_relaxed) >> 32) + 1;
    job.store((number << 32) | count, std::memory_order_seq_cst);
    called.notify(static_cast<int64_t>(count) - 1);
    take_part(0);
    finished.wait(may_spin, [this] { return unfinished.load(std::memory_order_seq_cst) == 0; });
  }

  void end_workers() {
    stop.store(true, std::memory_order_seq_cst);
    called.notify();
    for (auto& worker : workers) worker.join();
  }
};

ThreadTeam::ThreadTeam(int threads, int cores) : state_(std::make_unique<State>()) {
  ATHANOR_ASSERT(threads >= 1 && cores >= 0, "a team of {} threads on {} cores", threads, cores);
  state_->may_spin = threads <= (cores > 0 ? std::min(cores, available_cores()) : available_cores());
  try {
    state_->workers.reserve(static_cast<size_t>(threads - 1));
    for (int thread = 1; thread < threads; ++thread)
      state_->workers.emplace_back([state = state_.get(), thread] { state->work(thread); });
  } catch (const std::system_error& error) {
    state_->end_workers();
    throw_user_error(fmt::format("cannot start {} threads: {}", threads, error.what()),
                     "use fewer threads or raise the limit on processes (ulimit -u)");
  }
}

ThreadTeam::~ThreadTeam() {
  state_->end_workers();
}

int ThreadTeam::size() const {
  return static_cast<int>(state_->workers.size()) + 1;
}

void ThreadTeam::run(int64_t tiles, Function function, void* context) {
  if (tiles <= 0) return;
  State& state = *state_;
  ATHANOR_ASSERT(!state.busy.exchange(true, std::memory_order_acquire), "parallel_for inside parallel_for");
  if (state.workers.empty() || tiles == 1) {
    for (int64_t tile = 0; tile < tiles; ++tile) state.run_tile(function, context, tile, 0);
  } else {
    constexpr int64_t most = UINT32_MAX;  // what the counter of one job holds
    for (int64_t first = 0; first < tiles; first += most)
      state.dispatch(first, static_cast<uint32_t>(std::min(most, tiles - first)), function, context);
  }
  std::exception_ptr failure;
  if (state.failed.load(std::memory_order_relaxed)) {
    failure = std::exchange(state.failure, nullptr);
    state.failed.store(false, std::memory_order_relaxed);
  }
  state.busy.store(false, std::memory_order_release);
  if (failure) std::rethrow_exception(failure);
}

}  // namespace athanor
