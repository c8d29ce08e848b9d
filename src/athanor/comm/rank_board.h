// What one rank shows to its peers beside its messages: a bell that wakes it, an alarm, how far it has come.
//
// Lies in memory that the rank's peers on the host can read and write (comm/host_transport.h) or in one
// process (comm/thread_transport.h); peers on other hosts get it as a RankStatus. Thread safety: everything
// from any thread or process, but for what is said below to be the owner's.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/comm/collective.h"

namespace athanor {

// Wakes the one thread of a rank that waits. A sleeper says so, looks once more whether what it waits for has
// happened, and sleeps on the count that it read before; whoever makes it happen does so with a sequentially
// consistent store before it rings.
class Bell {
 public:
  void ring();                                   // costs one load when nobody sleeps
  uint32_t lie_down();                           // before the last look; returns the count
  void sleep(uint32_t count, int64_t until_ns);  // until rung, or until that monotonic time
  void get_up();

 private:
  std::atomic<uint32_t> count_{0}, sleepers_{0};
};

// One collective that a rank has begun.
struct IssuedCollective {
  GroupId group = -1;
  CollectiveKind kind = CollectiveKind::all_reduce;
  uint64_t sequence = 0;
};

// A copy of what a board shows.
struct RankStatus {
  uint64_t begun = 0, completed = 0;   // collectives, over all groups
  std::vector<IssuedCollective> last;  // the last ones begun, oldest first
  std::string phase;                   // what the rank says it is doing
  std::string failure;                 // why it gave up; empty if it has not
  int32_t awaited = -1;                // the rank that it waits for in the last collective; negative: none
  uint64_t heartbeat = 0;
};

class RankBoard {
 public:
  static constexpr size_t history = 8;
  static constexpr size_t phase_bytes = 64, failure_bytes = 4096;

  Bell bell;

  // Of the owner.
  void begin(const IssuedCollective& collective);
  void complete() { completed_.fetch_add(1, std::memory_order_release); }
  void set_awaited(int rank) { awaited_.store(rank, std::memory_order_relaxed); }  // negative: none
  void set_phase(std::string_view phase);
  void beat() { heartbeat_.fetch_add(1, std::memory_order_relaxed); }
  void set_failure(std::string_view failure);                  // the first one stays
  void leave() { left_.store(1, std::memory_order_seq_cst); }  // all is done: this rank may end

  // Of anybody. An alarm tells the owner that `rank` has given up; the first one stays.
  void raise_alarm(int rank);
  int alarm() const {
    return static_cast<int>(alarm_.load(std::memory_order_seq_cst)) - 1;
  }  // negative: none
  bool has_failed() const { return failure_state_.load(std::memory_order_acquire) == 2; }
  bool has_left() const { return left_.load(std::memory_order_seq_cst) != 0; }
  uint64_t heartbeat() const { return heartbeat_.load(std::memory_order_relaxed); }
  RankStatus status() const;

 private:
  template <size_t bytes>
  using SharedText = std::array<std::atomic<uint64_t>, bytes / 8>;
  struct SharedEntry {
    std::atomic<int64_t> group{-1};
    std::atomic<uint64_t> kind{0}, sequence{0};
  };
  alignas(64) std::atomic<uint32_t> alarm_{0};
  std::atomic<uint32_t> left_{0};
  std::atomic<uint32_t> failure_state_{0};  // 0 none, 1 being written, 2 complete
  alignas(64) std::atomic<uint64_t> begun_{0}, completed_{0}, heartbeat_{0};
  std::atomic<int32_t> awaited_{-1};
  std::array<SharedEntry, history> last_{};
  SharedText<phase_bytes> phase_{};
  SharedText<failure_bytes> failure_{};
};

}  // namespace athanor
