#include "athanor/comm/thread_transport.h"

#include <sys/mman.h>

#include <cstdlib>
#include <mutex>
#include <new>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr uint32_t own_address_space = 1;  // a region of which the offset is an address

std::shared_ptr<std::byte> zeroed_memory(int64_t bytes) {
  ATHANOR_ASSERT(bytes >= 0, "{} bytes", bytes);
  const auto length = static_cast<size_t>(bytes > 0 ? bytes : 1);
  void* const data = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (data == MAP_FAILED)
    throw_user_error(fmt::format("not enough memory: {} bytes asked for", bytes),
                     "use a smaller model or batch");
  return {static_cast<std::byte*>(data), [length](std::byte* pointer) { munmap(pointer, length); }};
}

}  // namespace

struct ThreadNetwork::State {
  explicit State(int count) : ranks(count), boards(static_cast<size_t>(count)) {}
  // Between two ranks; backed by memory when it is used.
  Mailbox& mailbox(int from, int to) {
    const std::lock_guard lock(mutex);
    auto& place = mailboxes[static_cast<size_t>(from * ranks + to)];
    if (!place) place = zeroed_memory(sizeof(Mailbox));
    return *reinterpret_cast<Mailbox*>(place.get());
  }

  const int ranks;
  std::vector<RankBoard> boards;
  std::mutex mutex;
  std::vector<std::shared_ptr<std::byte>> mailboxes =
      std::vector<std::shared_ptr<std::byte>>(static_cast<size_t>(ranks) * static_cast<size_t>(ranks));
};

class ThreadTransport final : public Transport {
 public:
  ThreadTransport(ThreadNetwork::State& state, int rank, const MessageFaults& faults)
      : state_(state), rank_(rank), faults_(faults), links_(static_cast<size_t>(state.ranks)) {}

  int rank() const override { return rank_; }
  int ranks() const override { return state_.ranks; }
  RankBoard& board() override { return state_.boards[static_cast<size_t>(rank_)]; }
  int64_t spin_ns() const override { return 0; }
  std::shared_ptr<std::byte> allocate(int64_t bytes) override { return zeroed_memory(bytes); }

  Link& link(int peer) override {
    ATHANOR_ASSERT(peer >= 0 && peer < ranks() && peer != rank_, "rank {} to rank {}", rank_, peer);
    auto& link = links_[static_cast<size_t>(peer)];
    if (!link) {
      MailboxHooks hooks;
      hooks.share = [](const std::byte* data, uint64_t) {
        return SharedPlace{own_address_space, reinterpret_cast<uintptr_t>(data)};
      };
      hooks.resolve = [](SharedPlace place, uint64_t) {
        // An address of this process, as share() told it. NOLINTNEXTLINE(performance-no-int-to-ptr)
        return reinterpret_cast<const std::byte*>(static_cast<uintptr_t>(place.offset));
      };
      link = std::make_unique<MailboxLink>(peer, state_.mailbox(rank_, peer),
                                           state_.boards[static_cast<size_t>(peer)].bell,
                                           state_.mailbox(peer, rank_), std::move(hooks), faults_);
    }
    return *link;
  }

  void progress() override {
    for (const auto& link : links_)
      if (link) link->progress();
  }

  void check() override {
    const int from = board().alarm();
    if (from < 0) return;
    // The reason is handed on as it is: the first report names who is to blame.
    const std::string reason = state_.boards[static_cast<size_t>(from)].status().failure;
    if (reason.empty()) return;  // it is being written
    board().set_failure(reason);
    throw Error(ErrorKind::restart_worker, reason);
  }

  void abort(const std::string& reason) override {
    board().set_failure(reason);
    for (RankBoard& other : state_.boards) other.raise_alarm(rank_);
  }

  std::vector<RankAnswer> ask(std::span<const int> of, int64_t) override {
    std::vector<RankAnswer> all;
    for (const int rank : of) all.push_back({true, state_.boards[static_cast<size_t>(rank)].status()});
    return all;
  }

 private:
  ThreadNetwork::State& state_;
  const int rank_;
  const MessageFaults faults_;
  std::vector<std::unique_ptr<MailboxLink>> links_;
};

ThreadNetwork::ThreadNetwork(int ranks) : state_(std::make_unique<State>(ranks)) {}
ThreadNetwork::~ThreadNetwork() = default;

std::unique_ptr<Transport> ThreadNetwork::attach(int rank, const MessageFaults& faults) {
  return std::make_unique<ThreadTransport>(*state_, rank, faults);
}

}  // namespace athanor
