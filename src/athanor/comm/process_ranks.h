// Ranks as processes that a test or a benchmark forks: how they find each other, and what became of each.
//
// The process must have no thread of its own while it forks.
#pragma once

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/communicator.h"
#include "athanor/comm/host_transport.h"

namespace athanor {

// In memory that all of them share.
struct Meeting {
  static constexpr int most = 8;
  std::array<std::array<char, 512>, most> addresses{};
  std::array<std::atomic<int>, most> have_address{};
  std::array<std::atomic<int>, most> relay_port{};     // if not 0: others connect to this one
  std::array<std::array<char, 6000>, most> outcome{};  // message of the error that ended a rank
  std::array<std::atomic<int64_t>, most> ended_ns{};
  std::array<std::atomic<int>, most> progress{};  // whatever the test likes
};

class ProcessRanks {
 public:
  using Work = std::function<void(int rank, Communicator& communicator, Meeting& meeting)>;
  using Adjust = std::function<void(int rank, HostTransportOptions& transport, CommunicatorOptions& options)>;

  ProcessRanks(int ranks, const Adjust& adjust, const Work& work) : processes_(static_cast<size_t>(ranks)) {
    void* const shared =
        mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    meeting_ = new (shared) Meeting;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        serve(rank, ranks, adjust, work);
        std::_Exit(0);
      }
      processes_[static_cast<size_t>(rank)] = child;
    }
  }
  ~ProcessRanks() {
    for (size_t rank = 0; rank < processes_.size(); ++rank) {
      signal(static_cast<int>(rank), SIGKILL);
      wait_for(static_cast<int>(rank));
    }
    munmap(meeting_, sizeof(Meeting));
  }
  ProcessRanks(const ProcessRanks&) = delete;

  Meeting& meeting() { return *meeting_; }
  void signal(int rank, int number) {
    if (processes_[static_cast<size_t>(rank)] > 0) kill(processes_[static_cast<size_t>(rank)], number);
  }
  // The message of the error that the rank ended with; "died" if it came to no end of its own.
  std::string wait_for(int rank) {
    pid_t& process = processes_[static_cast<size_t>(rank)];
    if (process > 0) {
      int status = 0;
      waitpid(process, &status, 0);
      process = 0;
      if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
        std::strcpy(meeting_->outcome[static_cast<size_t>(rank)].data(), "died");
    }
    return meeting_->outcome[static_cast<size_t>(rank)].data();
  }
  void wait_for_progress(int rank, int value) {
    while (meeting_->progress[static_cast<size_t>(rank)] < value)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  void serve(int rank, int ranks, const Adjust& adjust, const Work& work) {
    const auto at = static_cast<size_t>(rank);
    try {
      HostTransportOptions transport{.rank = rank, .ranks = ranks, .secret = Secret("test")};
      CommunicatorOptions options;
      options.timeout_ns = 60'000'000'000;
      adjust(rank, transport, options);
      HostEndpoint endpoint(std::move(transport));
      std::strncpy(meeting_->addresses[at].data(), to_text(endpoint.address()).c_str(), 511);
      meeting_->have_address[at] = 1;
      const auto communicator = make_communicator(endpoint.connect([this](int peer) {
        const auto other = static_cast<size_t>(peer);
        while (meeting_->have_address[other] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        HostAddress address = parse_host_address(meeting_->addresses[other].data());
        if (meeting_->relay_port[other] != 0)
          address.port = static_cast<uint16_t>(meeting_->relay_port[other]);
        return address;
      }),
                                                  options);
      work(rank, *communicator, *meeting_);
    } catch (const Error& error) {
      std::strncpy(meeting_->outcome[at].data(), error.what(), meeting_->outcome[at].size() - 1);
    }
    meeting_->ended_ns[at] = monotonic_ns();
  }

  Meeting* meeting_ = nullptr;
  std::vector<pid_t> processes_;
};

}  // namespace athanor
