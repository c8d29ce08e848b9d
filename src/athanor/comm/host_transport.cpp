#include "athanor/comm/host_transport.h"

#include <poll.h>
#include <sys/epoll.h>

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/event_loop.h"
#include "athanor/comm/host_segment.h"
#include "athanor/comm/mailbox.h"
#include "athanor/comm/tcp_network.h"

namespace athanor {
namespace {

constexpr int64_t tick_ns = 100'000'000;

}  // namespace

class HostTransport final : public Transport {
 public:
  explicit HostTransport(HostTransportOptions options)
      : options_(std::move(options)),
        segment_(std::make_shared<OwnSegment>(options_)),
        registry_(std::make_shared<RegionRegistry>(segment_->head().regions, segment_)),
        peers_(static_cast<size_t>(options_.ranks)),
        loop_("athanor-peers", tick_ns, [this] { tick(); }) {
    address_.rank = options_.rank;
    address_.generation = options_.generation;
    address_.host = options_.host;
    address_.process = getpid();
    address_.segment = segment_->descriptor();
    if (options_.listen.empty()) return;
    tcp_ = std::make_unique<TcpNetwork>(options_, loop_, board(),
                                        [this](const std::string& what, bool handed_on) {
                                          if (handed_on)
                                            abort(what);
                                          else
                                            fail(what);
                                        });
    speaking_ = tcp_.get();
    address_.address = options_.announce.empty() ? options_.listen : options_.announce;
    address_.port = tcp_->port();
  }

  ~HostTransport() override {
    wait_for_readers();
    board().leave();
    speaking_ = nullptr;
    tcp_.reset();
  }

  const HostAddress& address() const { return address_; }
  void connect(std::function<HostAddress(int)> address_of) { address_of_ = std::move(address_of); }

  int rank() const override { return options_.rank; }
  int ranks() const override { return options_.ranks; }
  RankBoard& board() override { return segment_->head().board; }
  int64_t spin_ns() const override { return options_.spin_ns; }
  std::shared_ptr<std::byte> allocate(int64_t bytes) override { return registry_->allocate(bytes); }

  Link& link(int peer) override {
    Peer& state = peers_[static_cast<size_t>(peer)];
    if (state.tcp_link != nullptr) return *state.tcp_link;
    if (state.link) return *state.link;
    open_link(peer, state);
    return state.tcp_link != nullptr ? *state.tcp_link : *state.link;
  }

  void progress() override {
    for (Link* const link : links_) link->progress();
  }

  void check() override {
    const int from = board().alarm();
    std::string reason;
    bool is_met = from < 0;
    {
      const std::lock_guard lock(mutex_);
      for (const Neighbour& neighbour : neighbours_) {
        is_met = is_met || neighbour.rank == from;
        if (neighbour.rank != from && !neighbour.board->has_failed()) continue;
        if (reason.empty()) reason = neighbour.board->status().failure;
      }
    }
    // What this rank has seen itself, or handed on before; who gave the alarm may have died over its report.
    if (from >= 0 && board().has_failed()) reason = board().status().failure;
    if (reason.empty() && !is_met && from != rank()) reason = failure_of_stranger(from);
    if (reason.empty()) return;  // or it is being written
    // Handed on as it is: the first report names who is to blame.
    board().set_failure(reason);
    throw Error(ErrorKind::restart_worker, reason);
  }

  void abort(const std::string& reason) override {
    board().set_failure(reason);
    if (TcpNetwork* const tcp = speaking_) tcp->broadcast_failure(board().status().failure);
    const std::lock_guard lock(mutex_);
    for (const Neighbour& neighbour : neighbours_) neighbour.board->raise_alarm(rank());
    board().raise_alarm(rank());
  }

  std::vector<RankAnswer> ask(std::span<const int> of, int64_t until_ns) override {
    std::vector<RankAnswer> all(of.size());
    std::vector<uint64_t> before(of.size());
    std::vector<RankBoard*> boards(of.size());
    for (size_t i = 0; i < of.size(); ++i) {
      boards[i] = board_of(of[i], all[i].asked);
      if (boards[i] != nullptr) before[i] = boards[i]->heartbeat();
    }
    if (tcp_) {
      const int64_t now = monotonic_ns();
      tcp_->request_statuses(of, all, now + (until_ns - now) / 2);
    }
    // Who is alive has a heart that beats.
    for (size_t left = 1; left > 0 && monotonic_ns() < until_ns;) {
      left = 0;
      for (size_t i = 0; i < of.size(); ++i) {
        if (all[i].status || boards[i] == nullptr) continue;
        if (of[i] == rank() || boards[i]->heartbeat() != before[i])
          all[i].status = boards[i]->status();
        else
          ++left;
      }
      if (left > 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    return all;
  }

 private:
  struct Peer {
    std::unique_ptr<PeerSegment> segment;
    std::unique_ptr<PeerRegions> regions;
    std::unique_ptr<Link> link;
    Link* tcp_link = nullptr;  // the network's
  };
  // A peer of this host that is being watched.
  struct Neighbour {
    int rank;
    pid_t process;
    RankBoard* board;
    uint64_t heartbeat = 0;
    int64_t beat_ns = 0;  // when the heartbeat was last seen to change
  };

  // A peer that has not met this rank yet could not read what was sent to it once this process is gone.
  void wait_for_readers() {
    const int64_t until_ns = monotonic_ns() + options_.silence_ns;
    const auto is_met = [this](int rank) {
      return segment_->mailbox_from(rank).attached.load(std::memory_order_acquire) != 0;
    };
    for (size_t i = 0; i < peers_.size(); ++i) {
      const Peer& peer = peers_[i];
      if (!peer.link || peer.link->posted() == 0) continue;
      while (!is_met(static_cast<int>(i)) && board().alarm() < 0 && monotonic_ns() < until_ns) {
        pollfd ended{peer.segment->process_descriptor(), POLLIN, 0};
        if (::poll(&ended, 1, 1) > 0) break;
      }
    }
  }

  // `is_near`: whether it is on this host. Null if it cannot be read: it is gone.
  RankBoard* board_of(int rank, bool& is_near) {
    is_near = rank == this->rank();
    if (is_near) return &board();
    Peer& peer = peers_[static_cast<size_t>(rank)];
    try {
      const HostAddress address = address_of_(rank);
      is_near = address.host == options_.host;
      if (!is_near) return nullptr;
      if (!peer.segment) attach(rank, peer, address);
      return &peer.segment->head().board;
    } catch (const Error&) {
      return nullptr;  // it does not answer
    }
  }

  // Why a rank gave up that has met this one, but not this one it.
  std::string failure_of_stranger(int rank) {
    try {
      return PeerSegment(options_, address_of_(rank)).head().board.status().failure;
    } catch (const Error& error) {
      return fmt::format("rank {}: {}", this->rank(), error.message());
    }
  }

  void attach(int rank, Peer& peer, const HostAddress& address) {
    if (address.rank != rank || address.generation != options_.generation)
      throw Error(ErrorKind::restart_worker,
                  fmt::format("the address of rank {} is one of rank {} in generation {}, not {}", rank,
                              address.rank, address.generation, options_.generation));
    peer.segment = std::make_unique<PeerSegment>(options_, address);
    peer.segment->mailbox().attached.store(1, std::memory_order_release);
    Neighbour neighbour{rank, address.process, &peer.segment->head().board, 0, monotonic_ns()};
    const int process = peer.segment->process_descriptor();
    {
      const std::lock_guard lock(mutex_);
      neighbours_.push_back(neighbour);
    }
    loop_.post([this, process, neighbour] {
      loop_.watch(process, EPOLLIN, [this, process, neighbour](uint32_t) {
        loop_.forget(process);
        if (!neighbour.board->has_left())
          fail(fmt::format("rank {} (process {}) has died", neighbour.rank, neighbour.process));
      });
    });
  }

  void open_link(int rank, Peer& peer) {
    ATHANOR_ASSERT(rank >= 0 && rank < ranks() && rank != this->rank(), "rank {} to rank {}", this->rank(),
                   rank);
    const HostAddress address = address_of_(rank);
    if (address.host != options_.host) {
      if (!tcp_ || address.address.empty())
        throw_user_error(
            fmt::format("rank {} and rank {} are on different hosts, and one of them listens on no "
                        "address",
                        this->rank(), rank),
            "give every rank an address that the others can reach");
      peer.tcp_link = &tcp_->link(address);
      return;
    }
    if (!peer.segment) attach(rank, peer, address);
    peer.regions = std::make_unique<PeerRegions>(peer.segment->head().regions, rank, address.process);
    MailboxHooks hooks;
    hooks.share = [this](const std::byte* data, uint64_t bytes) { return registry_->find(data, bytes); };
    hooks.resolve = [regions = peer.regions.get()](SharedPlace place, uint64_t bytes) {
      return regions->resolve(place, bytes);
    };
    peer.link =
        std::make_unique<MailboxLink>(rank, peer.segment->mailbox(), peer.segment->head().board.bell,
                                      segment_->mailbox_from(rank), std::move(hooks), MessageFaults{});
    links_.push_back(peer.link.get());
  }

  // In the loop's thread. A rank whose work is done needs nobody any more: peers that answer its goodbye by
  // closing their connections are no fault, and those that still work would take its word for it.
  void fail(const std::string& what) {
    if (!board().has_left()) abort(fmt::format("rank {}: {}", rank(), what));
  }

  void tick() {
    board().beat();
    const int64_t now = monotonic_ns();
    // While this process was stopped nobody could have seen its peers live.
    const int64_t pause = now - std::exchange(last_tick_ns_, now);
    const int64_t lost = pause > stopped_ns ? pause : 0;
    std::string silent;
    {
      const std::lock_guard lock(mutex_);
      for (Neighbour& neighbour : neighbours_) {
        neighbour.beat_ns += lost;
        const uint64_t heartbeat = neighbour.board->heartbeat();
        if (heartbeat != neighbour.heartbeat) {
          neighbour.heartbeat = heartbeat;
          neighbour.beat_ns = now;
        } else if (now - neighbour.beat_ns > options_.silence_ns && !neighbour.board->has_left()) {
          silent = fmt::format(
              "rank {} (process {}) shows no sign of life for {:.1f} s: stopped, or its machine "
              "is overloaded",
              neighbour.rank, neighbour.process, seconds_of(now - neighbour.beat_ns));
        }
      }
    }
    if (!silent.empty() && board().alarm() < 0) fail(silent);
    if (TcpNetwork* const tcp = speaking_) tcp->tick(lost);
  }

  const HostTransportOptions options_;
  std::shared_ptr<OwnSegment> segment_;
  std::shared_ptr<RegionRegistry> registry_;
  HostAddress address_;
  std::function<HostAddress(int)> address_of_;
  std::vector<Peer> peers_;   // by rank
  std::vector<Link*> links_;  // those that are open
  std::mutex mutex_;          // guards neighbours_
  std::vector<Neighbour> neighbours_;
  int64_t last_tick_ns_ = monotonic_ns();  // of the loop's thread
  std::unique_ptr<TcpNetwork> tcp_;        // if this rank listens
  std::atomic<TcpNetwork*> speaking_{nullptr};
  EventLoop loop_;  // the last member: it ends before what its callbacks use
};

HostEndpoint::HostEndpoint(HostTransportOptions options)
    : transport_(std::make_unique<HostTransport>(std::move(options))) {}

HostEndpoint::~HostEndpoint() = default;

const HostAddress& HostEndpoint::address() const {
  return transport_->address();
}

std::unique_ptr<Transport> HostEndpoint::connect(std::function<HostAddress(int rank)> address_of) {
  transport_->connect(std::move(address_of));
  return std::move(transport_);
}

}  // namespace athanor
