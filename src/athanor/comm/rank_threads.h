// Ranks as threads of one process, each with its communicator: for tests of what runs on many ranks.
//
// Called by tests. Thread safety: `work` runs on one thread for each rank.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/comm/communicator.h"
#include "athanor/comm/thread_transport.h"

namespace athanor {

// Runs `work(communicator)` for each rank. Returns what each ended with: "" or the message of its error,
// which the others are told at once.
template <class Work>
std::vector<std::string> run_rank_threads(int ranks, const Work& work, CommunicatorOptions options = {}) {
  ThreadNetwork network(ranks);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < ranks; ++rank)
    communicators.push_back(make_communicator(network.attach(rank), options));
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      Communicator& communicator = *communicators[static_cast<size_t>(rank)];
      try {
        work(communicator);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.message();
        communicator.abort(error.message());
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

}  // namespace athanor
