#include "athanor/comm/rank_board.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "athanor/base/clock.h"

namespace athanor {
namespace {

static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == 4);

long futex(std::atomic<uint32_t>& word, int operation, uint32_t value, const timespec* timeout) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(&word), operation, value, timeout, nullptr, 0);
}

template <class Text>
void write_text(Text& to, std::string_view text) {
  std::array<char, sizeof(Text)> bytes{};
  std::copy_n(text.begin(), std::min(text.size(), bytes.size() - 1), bytes.begin());
  for (size_t i = 0; i < to.size(); ++i) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + 8 * i, 8);
    to[i].store(word, std::memory_order_relaxed);
  }
}

template <class Text>
std::string read_text(const Text& from) {
  std::array<char, sizeof(Text) + 1> bytes{};
  for (size_t i = 0; i < from.size(); ++i) {
    const uint64_t word = from[i].load(std::memory_order_relaxed);
    std::memcpy(bytes.data() + 8 * i, &word, 8);
  }
  return bytes.data();
}

}  // namespace

void Bell::ring() {
  if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
  count_.fetch_add(1, std::memory_order_seq_cst);
  futex(count_, FUTEX_WAKE, INT32_MAX, nullptr);
}

uint32_t Bell::lie_down() {
  const uint32_t count = count_.load(std::memory_order_seq_cst);
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  return count;
}

void Bell::sleep(uint32_t count, int64_t until_ns) {
  const int64_t left = until_ns - monotonic_ns();
  if (left <= 0) return;
  const timespec timeout{left / 1'000'000'000, left % 1'000'000'000};
  futex(count_, FUTEX_WAIT, count, &timeout);
}

void Bell::get_up() {
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

void RankBoard::begin(const IssuedCollective& collective) {
  const uint64_t number = begun_.load(std::memory_order_relaxed);
  SharedEntry& entry = last_[number % history];
  entry.group.store(collective.group, std::memory_order_relaxed);
  entry.kind.store(static_cast<uint64_t>(collective.kind), std::memory_order_relaxed);
  entry.sequence.store(collective.sequence, std::memory_order_relaxed);
  begun_.store(number + 1, std::memory_order_release);
}

void RankBoard::set_phase(std::string_view phase) {
  write_text(phase_, phase);
}

void RankBoard::set_failure(std::string_view failure) {
  uint32_t none = 0;
  if (!failure_state_.compare_exchange_strong(none, 1)) return;
  write_text(failure_, failure);
  failure_state_.store(2, std::memory_order_release);
}

void RankBoard::raise_alarm(int rank) {
  uint32_t none = 0;
  alarm_.compare_exchange_strong(none, static_cast<uint32_t>(rank) + 1, std::memory_order_seq_cst);
  bell.ring();
}

RankStatus RankBoard::status() const {
  RankStatus status;
  status.completed = completed_.load(std::memory_order_acquire);
  status.begun = begun_.load(std::memory_order_acquire);
  for (uint64_t number = status.begun - std::min<uint64_t>(status.begun, history); number < status.begun;
       ++number) {
    const SharedEntry& entry = last_[number % history];
    const uint64_t kind = entry.kind.load(std::memory_order_relaxed) % collective_kind_count;
    status.last.push_back({static_cast<GroupId>(entry.group.load(std::memory_order_relaxed)),
                           static_cast<CollectiveKind>(kind),
                           entry.sequence.load(std::memory_order_relaxed)});
  }
  status.phase = read_text(phase_);
  if (has_failed()) status.failure = read_text(failure_);
  status.heartbeat = heartbeat();
  status.awaited = awaited_.load(std::memory_order_relaxed);
  return status;
}

}  // namespace athanor
