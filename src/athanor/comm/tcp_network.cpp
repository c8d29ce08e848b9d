#include "athanor/comm/tcp_network.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <iterator>
#include <thread>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/socket_address.h"

namespace athanor {
namespace {

constexpr int64_t heartbeat_ns = 1'000'000'000, retry_ns = 200'000'000, farewell_ns = 300'000'000;

// Reads on to `wanted` bytes. 1: all there, 0: not yet, -1: the other side is gone.
int read_fixed(int socket, std::byte* to, size_t wanted, size_t& have) {
  while (have < wanted) {
    const ssize_t got = recv(socket, to + have, wanted - have, MSG_DONTWAIT);
    if (got > 0)
      have += static_cast<size_t>(got);
    else if (got < 0 && errno == EINTR)
      continue;
    else
      return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
  }
  return 1;
}

// The few bytes of an introduction always fit into the buffer of a new connection.
bool write_fixed(int socket, std::span<const std::byte> bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

}  // namespace

TcpNetwork::TcpNetwork(const HostTransportOptions& options, EventLoop& loop, RankBoard& board, Fail fail)
    : options_(options), loop_(loop), board_(board), fail_(std::move(fail)) {
  listen_on(options.listen);
  loop_.post([this] { loop_.watch(listener_.number(), EPOLLIN, [this](uint32_t) { accept_all(); }); });
}

TcpNetwork::~TcpNetwork() {
  for (TcpLink* const link : links()) link->send_control(FrameType::goodbye, {});
  std::mutex mutex;
  std::condition_variable done;
  bool ended = false;
  const int64_t deadline = monotonic_ns() + (board_.alarm() < 0 ? options_.silence_ns : farewell_ns);
  loop_.post([this] {
    for (TcpLink* const link : links()) link->shut_down();
  });
  // Closing while a peer's bytes lie unread would throw away what that peer has not read yet.
  while (monotonic_ns() < deadline) {
    bool open = false;
    for (TcpLink* const link : links()) open = open || link->has_channel();
    if (!open) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  loop_.post([&] {
    for (TcpLink* const link : links()) link->close_channels();
    while (!strangers_.empty()) drop(strangers_.begin());
    for (Attempt& attempt : attempts_)
      if (attempt.socket.is_open()) loop_.forget(attempt.socket.number());
    attempts_.clear();
    loop_.forget(listener_.number());
    const std::lock_guard lock(mutex);
    ended = true;
    done.notify_all();
  });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return ended; });
}

void TcpNetwork::listen_on(const std::string& address) {
  const auto where = socket_address(address, 0);
  if (!where)
    throw_user_error(fmt::format("'{}' is not a numeric IP address to listen on", address),
                     "for example 127.0.0.1 or 10.0.0.5");
  listener_ = tcp_socket(where->storage.ss_family);
  if (!listener_.is_open() || bind(listener_.number(), where->data(), where->length) != 0 ||
      listen(listener_.number(), 4096) != 0)
    throw_user_error(fmt::format("cannot listen on {}: {}", address, std::strerror(errno)),
                     "use an address of this machine");
  port_ = port_of_socket(listener_.number());
}

void TcpNetwork::accept_all() {
  while (true) {
    Descriptor socket(accept4(listener_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      // Out of descriptors: whoever has not said who he is makes room.
      if ((errno == EMFILE || errno == ENFILE) && !strangers_.empty()) {
        drop(strangers_.begin());
        continue;
      }
      return;
    }
    if (strangers_.size() >= most_strangers) drop(strangers_.begin());
    set_low_delay(socket.number());
    strangers_.emplace_back();
    const auto stranger = std::prev(strangers_.end());
    stranger->challenge = make_challenge(random_nonce());
    stranger->deadline_ns = monotonic_ns() + introduction_ns;
    const bool written = write_fixed(socket.number(), stranger->challenge);
    stranger->socket = std::move(socket);
    loop_.watch(stranger->socket.number(), EPOLLIN, [this, stranger](uint32_t) { hear_stranger(stranger); });
    if (!written) drop(stranger);
  }
}

void TcpNetwork::drop(Strangers::iterator stranger) {
  loop_.forget(stranger->socket.number());
  strangers_.erase(stranger);
}

void TcpNetwork::hear_stranger(Strangers::iterator stranger) {
  const int state =
      read_fixed(stranger->socket.number(), stranger->hello.data(), stranger->hello.size(), stranger->have);
  if (state == 0) return;
  const auto introduction =
      state > 0 ? check_hello(options_.secret, stranger->challenge, stranger->hello) : std::nullopt;
  if (!introduction || introduction->to != options_.rank || introduction->generation != options_.generation ||
      introduction->from < 0 || introduction->from >= options_.ranks || introduction->from == options_.rank ||
      !write_fixed(stranger->socket.number(),
                   make_welcome(options_.secret, stranger->challenge, stranger->hello))) {
    drop(stranger);
    return;
  }
  loop_.forget(stranger->socket.number());
  Descriptor socket = std::move(stranger->socket);
  strangers_.erase(stranger);
  link_to(introduction->from).add_channel(TcpLink::Side::incoming, std::move(socket));
}

Link& TcpNetwork::link(const HostAddress& peer) {
  {
    const std::lock_guard lock(mutex_);
    addresses_[peer.rank] = peer;
  }
  TcpLink& link = link_to(peer.rank);
  loop_.post([this, peer] { begin(peer); });
  return link;
}

TcpLink& TcpNetwork::link_to(int rank) {
  const std::lock_guard lock(mutex_);
  auto& link = links_[rank];
  if (!link) {
    TcpLink::Hooks hooks;
    hooks.fail = [this](int peer, const std::string& what) {
      fail_(fmt::format("{} {}", name_of_peer(peer), what), false);
    };
    hooks.control = [this](int peer, FrameType type, const std::string& payload) {
      on_control(peer, type, payload);
    };
    link = std::make_unique<TcpLink>(rank, loop_, board_.bell, std::move(hooks));
  }
  return *link;
}

std::vector<TcpLink*> TcpNetwork::links() {
  const std::lock_guard lock(mutex_);
  std::vector<TcpLink*> all;
  for (const auto& [rank, link] : links_) all.push_back(link.get());
  return all;
}

std::string TcpNetwork::name_of_peer(int rank) {
  const std::lock_guard lock(mutex_);
  const auto found = addresses_.find(rank);
  if (found == addresses_.end()) return fmt::format("rank {}", rank);
  return fmt::format("rank {} ({} port {})", rank, found->second.address, found->second.port);
}

void TcpNetwork::begin(const HostAddress& peer) {
  Attempt& attempt = attempts_.emplace_back();
  attempt.peer = peer;
  attempt.deadline_ns = monotonic_ns() + options_.connect_timeout_ns;
  try_to_connect(attempt);
}

void TcpNetwork::try_to_connect(Attempt& attempt) {
  const auto where = socket_address(attempt.peer.address, attempt.peer.port);
  if (!where) return retry_later(attempt, fmt::format("'{}' is not an IP address", attempt.peer.address));
  attempt.socket = tcp_socket(where->storage.ss_family);
  if (!attempt.socket.is_open()) return retry_later(attempt, std::strerror(errno));
  set_low_delay(attempt.socket.number());
  attempt.have = 0;
  if (connect(attempt.socket.number(), where->data(), where->length) != 0 && errno != EINPROGRESS)
    return retry_later(attempt, std::strerror(errno));
  attempt.stage = Attempt::Stage::connecting;
  const auto self =
      std::find_if(attempts_.begin(), attempts_.end(), [&](auto& each) { return &each == &attempt; });
  loop_.watch(attempt.socket.number(), EPOLLIN | EPOLLOUT, [this, self](uint32_t) { go_on(self); });
}

void TcpNetwork::retry_later(Attempt& attempt, const std::string& problem) {
  if (attempt.socket.is_open()) loop_.forget(attempt.socket.number());
  attempt.socket.close();
  attempt.stage = Attempt::Stage::waiting;
  attempt.retry_ns = monotonic_ns() + retry_ns;
  attempt.last_problem = problem;
}

void TcpNetwork::go_on(Attempts::iterator attempt) {
  const int socket = attempt->socket.number();
  if (attempt->stage == Attempt::Stage::connecting) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return retry_later(*attempt, std::strerror(error));
    attempt->stage = Attempt::Stage::challenge;
    loop_.change(socket, EPOLLIN);
  }
  if (attempt->stage == Attempt::Stage::challenge) {
    const int state = read_fixed(socket, attempt->challenge.data(), attempt->challenge.size(), attempt->have);
    if (state == 0) return;
    const auto hello = state < 0 ? std::nullopt
                                 : answer_challenge(options_.secret, attempt->challenge,
                                                    {options_.rank, attempt->peer.rank, options_.generation},
                                                    random_nonce());
    if (!hello || !write_fixed(socket, *hello)) return retry_later(*attempt, "does not speak as a rank does");
    attempt->hello = *hello;
    attempt->have = 0;
    attempt->stage = Attempt::Stage::welcome;
  }
  const int state = read_fixed(socket, attempt->welcome.data(), attempt->welcome.size(), attempt->have);
  if (state == 0) return;
  if (state < 0) return retry_later(*attempt, "refuses: another secret, generation or rank");
  if (!equal_proofs(attempt->welcome, make_welcome(options_.secret, attempt->challenge, attempt->hello)))
    return retry_later(*attempt, "does not have the job's secret");
  loop_.forget(socket);
  const int peer = attempt->peer.rank;
  Descriptor made = std::move(attempt->socket);
  attempts_.erase(attempt);
  link_to(peer).add_channel(TcpLink::Side::outgoing, std::move(made));
}

void TcpNetwork::tick() {
  const int64_t now = monotonic_ns();
  while (!strangers_.empty() && strangers_.front().deadline_ns < now) drop(strangers_.begin());
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto here = attempt++;
    if (now >= here->deadline_ns) {
      const std::string problem = here->last_problem.empty() ? "does not answer" : here->last_problem;
      const std::string name = name_of_peer(here->peer.rank);
      if (here->socket.is_open()) loop_.forget(here->socket.number());
      attempts_.erase(here);
      fail_(fmt::format("no connection to {} within {:.1f} s: {}", name,
                        seconds_of(options_.connect_timeout_ns), problem),
            false);
    } else if (here->stage == Attempt::Stage::waiting && now >= here->retry_ns) {
      try_to_connect(*here);
    }
  }
  if (now - last_heartbeat_ns_ < std::min(heartbeat_ns, options_.silence_ns / 4)) return;
  last_heartbeat_ns_ = now;
  for (TcpLink* const link : links()) {
    if (!link->has_channel()) continue;
    link->send_control(FrameType::heartbeat, {});
    if (now - link->last_heard_ns() <= options_.silence_ns || link->peer_has_left()) continue;
    if (board_.alarm() < 0)
      fail_(fmt::format("{} shows no sign of life for {:.1f} s: stopped, or cut off",
                        name_of_peer(link->peer()), seconds_of(now - link->last_heard_ns())),
            false);
  }
}

void TcpNetwork::on_control(int peer, FrameType type, const std::string& payload) {
  if (type == FrameType::status_request) {
    link_to(peer).send_control(FrameType::status, encode_status(board_.status()));
  } else if (type == FrameType::status) {
    if (auto status = decode_status(payload)) {
      const std::lock_guard lock(mutex_);
      answers_[peer] = std::move(*status);
      answered_.notify_all();
    }
  } else if (type == FrameType::failure) {
    // Handed on as it is: the first report names who is to blame.
    fail_(payload, true);
  }
}

void TcpNetwork::broadcast_failure(const std::string& reason) {
  for (TcpLink* const link : links()) link->send_control(FrameType::failure, reason);
}

void TcpNetwork::request_statuses(std::span<const int> of, std::vector<std::optional<RankStatus>>& statuses,
                                  int64_t until_ns) {
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
  }
  std::vector<size_t> asked;
  for (size_t i = 0; i < of.size(); ++i) {
    if (statuses[i]) continue;
    TcpLink* link = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = links_.find(of[i]);
      if (found != links_.end()) link = found->second.get();
    }
    if (link != nullptr && link->send_control(FrameType::status_request, {})) asked.push_back(i);
  }
  std::unique_lock lock(mutex_);
  const auto all_there = [&] {
    return std::all_of(asked.begin(), asked.end(), [&](size_t i) { return answers_.contains(of[i]); });
  };
  const int64_t left = std::max<int64_t>(0, until_ns - monotonic_ns());
  answered_.wait_for(lock, std::chrono::nanoseconds(left), all_there);
  for (const size_t i : asked) {
    const auto found = answers_.find(of[i]);
    if (found != answers_.end()) statuses[i] = found->second;
  }
}

}  // namespace athanor
