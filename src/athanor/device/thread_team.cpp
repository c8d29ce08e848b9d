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

void refuse_too_many(int count, std::string_view what, std::string_view advice) {
  constexpr int for_each_core = 64;
  if (const int cores = available_cores(); count / for_each_core >= cores)
    throw_user_error(fmt::format("{} {} on a machine that has {} cores for them", count, what, cores),
                     fmt::format("fewer than {} for each core: {}", for_each_core, advice));
}

// The tiles of a job are divided into one range of neighbours for each thread, which takes those of its own
// range first and then helps the others: from one kernel to the next a thread stays with the same rows as
// long as all keep pace, and finds them in its cache.
//
// A range's word holds the number of the job in its upper half, the tiles nobody has claimed in the lower
// one. Claiming is one compare-exchange from (number, n) to (number, n - 1). It can only succeed while that
// job still has a tile to do there, so a worker that wakes late, or not at all, is neither waited for nor
// able to mix up two jobs; the fields it read meanwhile are discarded when the exchange fails.
struct ThreadTeam::State {
  struct alignas(cache_line) Range {
    std::atomic<uint64_t> claim{0};
    std::atomic<int64_t> end{0};  // one behind the last tile
  };

  alignas(cache_line) std::atomic<uint32_t> job{0};  // number
  std::atomic<Function> function{nullptr};
  std::atomic<void*> context{nullptr};
  std::vector<Range> ranges;  // by thread

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

  explicit State(int threads) : ranges(static_cast<size_t>(threads)) {}

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
    for (size_t i = 0; i < ranges.size(); ++i) {
      Range& range = ranges[(static_cast<size_t>(thread) + i) % ranges.size()];
      uint64_t value = range.claim.load(std::memory_order_acquire);
      while (unclaimed(value) > 0) {
        const Function call_tile = function.load(std::memory_order_relaxed);
        void* const argument = context.load(std::memory_order_relaxed);
        const int64_t tile = range.end.load(std::memory_order_relaxed) - unclaimed(value);
        if (!range.claim.compare_exchange_weak(value, value - 1, std::memory_order_acq_rel,
                                               std::memory_order_acquire))
          continue;
        run_tile(call_tile, argument, tile, thread);
        ++done;
        value = range.claim.load(std::memory_order_acquire);
      }
    }
    // The job cannot end before this, so all of `done` belongs to the one whose counters just read zero.
    if (done > 0 && unfinished.fetch_sub(done, std::memory_order_seq_cst) == done) finished.notify();
  }

  void work(int thread) {
    uint32_t seen = 0;
    while (!stop.load(std::memory_order_acquire)) {
      called.wait(may_spin, [&] {
        return job.load(std::memory_order_seq_cst) != seen || stop.load(std::memory_order_seq_cst);
      });
      seen = job.load(std::memory_order_seq_cst);
      take_part(thread);
    }
  }

  void dispatch(int64_t first, uint32_t count, Function call_tile, void* argument) {
    function.store(call_tile, std::memory_order_relaxed);
    context.store(argument, std::memory_order_relaxed);
    unfinished.store(count, std::memory_order_relaxed);
    const uint32_t number = job.load(std::memory_order_relaxed) + 1;
    const auto threads = static_cast<int64_t>(ranges.size());
    int64_t begin = 0;
    for (int64_t i = 0; i < threads; ++i) {
      const int64_t end = count * (i + 1) / threads;
      Range& range = ranges[static_cast<size_t>(i)];
      range.end.store(first + end, std::memory_order_relaxed);
      range.claim.store(uint64_t{number} << 32 | static_cast<uint64_t>(end - begin),
                        std::memory_order_release);
      begin = end;
    }
    job.store(number, std::memory_order_seq_cst);
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

ThreadTeam::ThreadTeam(int threads, int cores) : state_(std::make_unique<State>(threads)) {
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
