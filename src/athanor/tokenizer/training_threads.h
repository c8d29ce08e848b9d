// Runs one function on several threads: for the phases of tokenizer training.
//
// Thread safety: a call owns its threads.
#pragma once

#include <exception>
#include <functional>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

namespace athanor {

// Calls body(0) here and body(1) ... body(threads - 1) on threads of their own, as many as the system grants
// (the bodies must share the work through a counter or queue, so that fewer do as well). Returns when all
// have ended; then throws the first exception that one of them threw.
inline void run_on_threads(int threads, const std::function<void(int)>& body) {
  std::exception_ptr failure;
  std::mutex mutex;
  const auto guarded = [&](int thread) {
    try {
      body(thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (failure == nullptr) failure = std::current_exception();
    }
  };
  std::vector<std::jthread> others;
  for (int thread = 1; thread < threads; ++thread) {
    try {
      others.emplace_back(guarded, thread);
    } catch (const std::system_error&) {
      break;
    }
  }
  guarded(0);
  others.clear();
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace athanor
