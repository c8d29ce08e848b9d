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
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
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
  std::array<std::atomic<int64_t>, most> failed_ns{}, ended_ns{};
  std::array<std::array<char, 1000>, most> left_behind{};  // descriptors and shared memory after its end
  // Whatever the test likes.
  std::array<std::atomic<int>, most> progress{};
  std::array<std::atomic<uint64_t>, most> value{};
  std::atomic<int64_t> struck_ns{};
  std::atomic<pid_t> relay{};         // see relay.h
  std::atomic<int> relayed_rank{-1};  // if not negative: only connections from and to it go through the relay
};

// What this process has open, and how often: descriptors by what they lead to, pieces of shared memory.
inline std::map<std::string, int> open_things() {
  std::map<std::string, int> things;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;
    std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:")) target = "socket";
    if (!gone && !target.starts_with("/proc/")) ++things[target];
  }
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);)
    if (line.find("athanor-") != std::string::npos) ++things["mapping of " + line.substr(line.rfind('/'))];
  return things;
}

class ProcessRanks {
 public:
  using Work = std::function<void(int rank, Communicator& communicator, Meeting& meeting)>;
  using Adjust = std::function<void(int rank, HostTransportOptions& transport, CommunicatorOptions& options)>;
  // Puts something in front of a rank's transport.
  using Wrap = std::function<std::unique_ptr<Transport>(int rank, std::unique_ptr<Transport> transport)>;

  ProcessRanks(int ranks, const Adjust& adjust, const Work& work, const Wrap& wrap = {})
      : processes_(static_cast<size_t>(ranks)) {
    void* const shared =
        mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    meeting_ = new (shared) Meeting;
    for (int rank = 0; rank < ranks; ++rank) {
      const pid_t child = fork();
      if (child == 0) {
        serve(rank, ranks, adjust, work, wrap);
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
  // The message of the error that the rank ended with; "died ..." if it came to no end of its own, or to none
  // in `most_seconds`.
  std::string wait_for(int rank, double most_seconds = 300) {
    pid_t& process = processes_[static_cast<size_t>(rank)];
    const int64_t until_ns = monotonic_ns() + static_cast<int64_t>(most_seconds * 1e9);
    while (process > 0) {
      int status = 0;
      if (waitpid(process, &status, WNOHANG) == process) {
        process = 0;
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
          std::strcpy(
              meeting_->outcome[static_cast<size_t>(rank)].data(),
              WIFSIGNALED(status) ? fmt::format("died of signal {}", WTERMSIG(status)).c_str() : "died");
      } else if (monotonic_ns() > until_ns) {
        signal(rank, SIGKILL);
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    }
    return meeting_->outcome[static_cast<size_t>(rank)].data();
  }
  void wait_for_progress(int rank, int value) {
    while (meeting_->progress[static_cast<size_t>(rank)] < value)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  void serve(int rank, int ranks, const Adjust& adjust, const Work& work, const Wrap& wrap) {
    const auto at = static_cast<size_t>(rank);
    const std::map<std::string, int> before = open_things();
    try {
      HostTransportOptions transport{.rank = rank, .ranks = ranks, .secret = Secret("test")};
      CommunicatorOptions options;
      options.timeout_ns = 60'000'000'000;
      adjust(rank, transport, options);
      HostEndpoint endpoint(std::move(transport));
      std::strncpy(meeting_->addresses[at].data(), to_text(endpoint.address()).c_str(), 511);
      meeting_->have_address[at] = 1;
      std::unique_ptr<Transport> made =
          endpoint.connect([this, rank](int peer) { return address_of(peer, rank); });
      if (wrap) made = wrap(rank, std::move(made));
      const auto communicator = make_communicator(std::move(made), options);
      try {
        work(rank, *communicator, *meeting_);
      } catch (const Error&) {
        meeting_->failed_ns[at] = monotonic_ns();
        throw;
      }
    } catch (const Error& error) {
      std::strncpy(meeting_->outcome[at].data(), error.what(), meeting_->outcome[at].size() - 1);
    }
    meeting_->ended_ns[at] = monotonic_ns();
    std::string left;
    for (const auto& [thing, count] : open_things()) {
      const auto had = before.find(thing);
      if (count > (had == before.end() ? 0 : had->second)) left += thing + "\n";
    }
    std::strncpy(meeting_->left_behind[at].data(), left.c_str(), meeting_->left_behind[at].size() - 1);
  }

  HostAddress address_of(int peer, int rank) {
    const auto other = static_cast<size_t>(peer);
    while (meeting_->have_address[other] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    HostAddress address = parse_host_address(meeting_->addresses[other].data());
    const int relayed = meeting_->relayed_rank;
    if (meeting_->relay_port[other] != 0 && (relayed < 0 || relayed == rank || relayed == peer))
      address.port = static_cast<uint16_t>(meeting_->relay_port[other]);
    return address;
  }

  Meeting* meeting_ = nullptr;
  std::vector<pid_t> processes_;
};

}  // namespace athanor
