// Waiting for a condition over atomics in three stages: spin, yield, sleep.
//
// Called within `device`. Thread safety: all functions from any thread. The condition must be read with
// sequentially consistent loads and made true by a sequentially consistent store before notify(): then either
// the notifier sees the sleeper or the sleeper sees the condition.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <thread>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#endif

namespace athanor {

class Signal {
 public:
  // Returns when ready() holds. `may_spin`: the waiter has a core of its own; kernels follow each other
  // within microseconds and waking a sleeper costs tens of them, so it gives up late. Without, it yields for
  // a short while before it sleeps.
  template <class Ready>
  void wait(bool may_spin, Ready&& ready) {
    while (!wait_awake(may_spin, ready)) {
      const int before = call_.load(std::memory_order_seq_cst);
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      if (!ready()) call_.wait(before, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
  }

  // Wakes up to `wanted` sleepers. Costs one load when nobody sleeps.
  void notify(int64_t wanted = INT64_MAX) {
    const int asleep = sleepers_.load(std::memory_order_seq_cst);
    if (asleep == 0) return;
    call_.fetch_add(1, std::memory_order_seq_cst);
    if (wanted >= asleep) {
      call_.notify_all();
    } else {
      for (int64_t i = 0; i < wanted; ++i) call_.notify_one();
    }
  }

 private:
  // The stages before sleep; false when they are used up.
  template <class Ready>
  static bool wait_awake(bool may_spin, Ready&& ready) {
    using SteadyClock = std::chrono::steady_clock;
    if (ready()) return true;
    const auto begin = SteadyClock::now();
    if (may_spin) {
      while (SteadyClock::now() - begin < std::chrono::microseconds(100)) {
        for (int i = 0; i < 32; ++i) {
          if (ready()) return true;
#if defined(__x86_64__) || defined(__i386__)
          _mm_pause();
#endif
        }
      }
    }
    const auto yielding = std::chrono::microseconds(may_spin ? 2000 : 50);
    while (SteadyClock::now() - begin < yielding) {
      std::this_thread::yield();
      if (ready()) return true;
    }
    return false;
  }

  std::atomic<int> call_{0};  // what sleepers sleep on; int, because the system can wait on it directly
  std::atomic<int> sleepers_{0};
};

}  // namespace athanor
