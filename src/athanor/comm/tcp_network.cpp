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

constexpr int64_t heartbeat_ns = 1'000'000'000, retry_ns = 200'000'000;
// For peers to read what they have been sent, and for them to take it, when this rank has given up.
constexpr int64_t farewell_ns = 300'000'000, report_ns = 1'500'000'000;
// A rank listens before it tells its address: where nobody listens for so long it is gone.
constexpr int64_t refusal_ns = 3'000'000'000;
// For the goodbye of a peer, or its reason to give up, when the other connection to it has ended.
constexpr int64_t last_word_ns = 1'000'000'000;

}  // namespace

TcpNetwork::TcpNetwork(const HostTransportOptions& options, EventLoop& loop, RankBoard& board, Fail fail)
    : options_(options),
      loop_(loop),
      board_(board),
      fail_(std::move(fail)),
      doorkeeper_(
          options.secret, loop, {.address = options.listen},
          [this](const Introduction& introduction) { return expects(introduction); },
          [this](const Introduction& introduction, Descriptor socket) {
            add_channel(introduction.from, TcpLink::Side::incoming, std::move(socket));
          }) {
  loop_.post([this] { doorkeeper_.open(); });
}

TcpNetwork::~TcpNetwork() {
  std::mutex mutex;
  std::condition_variable done;
  bool ended = false;
  const bool gave_up = board_.alarm() >= 0;
  const int64_t begin = monotonic_ns();
  int64_t deadline = begin + (gave_up ? farewell_ns : options_.silence_ns);
  loop_.post([this] {
    for (TcpLink* const link : links()) link->shut_down();
  });
  // Closing while a peer's bytes lie unread would throw away what that peer has not read yet.
  while (monotonic_ns() < deadline) {
    // A peer without any connection would not learn that this rank had no more to do, and look for it.
    bool open = !gave_up && connecting_ > 0;
    for (TcpLink* const link : links()) {
      open = open || link->has_channel();
      // Why this rank gave up stands behind what it had begun to send.
      if (gave_up && link->has_unsent()) deadline = std::min(begin + report_ns, monotonic_ns()) + farewell_ns;
    }
    if (!open) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  loop_.post([&] {
    for (TcpLink* const link : links()) link->close_channels();
    doorkeeper_.close();
    for (Attempt& attempt : attempts_) end_try(attempt);
    attempts_.clear();
    const std::lock_guard lock(mutex);
    ended = true;
    done.notify_all();
  });
  std::unique_lock lock(mutex);
  done.wait(lock, [&] { return ended; });
}

bool TcpNetwork::expects(const Introduction& introduction) const {
  return introduction.to == options_.rank && introduction.generation == options_.generation &&
         introduction.from >= 0 && introduction.from < options_.ranks && introduction.from != options_.rank;
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
  OutgoingIntroduction& introduction = attempt.introduction.emplace(
      *where, Introduction{options_.rank, attempt.peer.rank, options_.generation});
  if (introduction.state() == OutgoingIntroduction::State::failed)
    return retry_later(attempt, introduction.problem());
  const auto self =
      std::find_if(attempts_.begin(), attempts_.end(), [&](auto& each) { return &each == &attempt; });
  loop_.watch(introduction.socket(), introduction.events(), [this, self](uint32_t) { go_on(self); });
  ++connecting_;
}

void TcpNetwork::end_try(Attempt& attempt) {
  if (attempt.introduction && attempt.introduction->socket() >= 0) {
    loop_.forget(attempt.introduction->socket());
    --connecting_;
  }
  attempt.introduction.reset();
}

void TcpNetwork::retry_later(Attempt& attempt, std::string problem) {
  const int64_t now = monotonic_ns();
  const bool refused = attempt.introduction && attempt.introduction->is_refused();
  attempt.refused_ns = !refused ? 0 : attempt.refused_ns != 0 ? attempt.refused_ns : now;
  attempt.last_problem = std::move(problem);
  attempt.retry_ns = now + retry_ns;
  end_try(attempt);
}

void TcpNetwork::go_on(Attempts::iterator attempt) {
  OutgoingIntroduction& introduction = *attempt->introduction;
  switch (introduction.advance(options_.secret)) {
    case OutgoingIntroduction::State::failed:
      return retry_later(*attempt, introduction.problem());
    case OutgoingIntroduction::State::done:
      break;
    default:
      return loop_.change(introduction.socket(), introduction.events());
  }
  loop_.forget(introduction.socket());
  const int peer = attempt->peer.rank;
  Descriptor made = introduction.take_socket();
  attempts_.erase(attempt);
  add_channel(peer, TcpLink::Side::outgoing, std::move(made));
  --connecting_;
}

void TcpNetwork::add_channel(int peer, TcpLink::Side side, Descriptor socket) {
  TcpLink& link = link_to(peer);
  // Who comes too late to be told with the others.
  link.add_channel(side, std::move(socket), board_.has_failed() ? board_.status().failure : "");
  if (board_.has_left()) link.shut_down();
}

void TcpNetwork::tick(int64_t lost_ns) {
  const int64_t now = monotonic_ns();
  doorkeeper_.tick();
  for (auto attempt = attempts_.begin(); attempt != attempts_.end();) {
    const auto here = attempt++;
    here->deadline_ns += lost_ns;
    const bool is_gone = here->refused_ns != 0 && now - here->refused_ns >= refusal_ns;
    if (link_to(here->peer.rank).peer_has_left()) {
      end_try(*here);
      attempts_.erase(here);
    } else if (now >= here->deadline_ns || is_gone) {
      const std::string problem = here->last_problem.empty() ? "does not answer" : here->last_problem;
      const std::string name = name_of_peer(here->peer.rank);
      const double seconds = seconds_of(now >= here->deadline_ns ? options_.connect_timeout_ns : refusal_ns);
      end_try(*here);
      attempts_.erase(here);
      fail_(fmt::format("no connection to {} within {:.1f} s: {}", name, seconds, problem), false);
    } else if (!here->introduction && now >= here->retry_ns) {
      try_to_connect(*here);
    }
  }
  if (lost_ns > 0)
    for (TcpLink* const link : links()) link->forgive(lost_ns);
  if (now - last_heartbeat_ns_ < std::min(heartbeat_ns, options_.silence_ns / 4)) return;
  last_heartbeat_ns_ = now;
  for (TcpLink* const link : links()) {
    if (!link->has_channel()) continue;
    if (link->ended_before(now - last_word_ns)) continue;
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
  for (TcpLink* const link : links()) {
    link->drop_messages();  // their memory may be freed when this rank gives up
    link->send_control(FrameType::failure, reason);
  }
}

void TcpNetwork::request_statuses(std::span<const int> of, std::vector<RankAnswer>& answers,
                                  int64_t until_ns) {
  {
    const std::lock_guard lock(mutex_);
    answers_.clear();
  }
  std::vector<size_t> asked;
  for (size_t i = 0; i < of.size(); ++i) {
    if (answers[i].asked) continue;
    TcpLink* link = nullptr;
    {
      const std::lock_guard lock(mutex_);
      const auto found = links_.find(of[i]);
      if (found != links_.end()) link = found->second.get();
    }
    answers[i].asked = link != nullptr && link->send_control(FrameType::status_request, {});
    if (answers[i].asked) asked.push_back(i);
  }
  std::unique_lock lock(mutex_);
  const auto all_there = [&] {
    return std::all_of(asked.begin(), asked.end(), [&](size_t i) { return answers_.contains(of[i]); });
  };
  const int64_t left = std::max<int64_t>(0, until_ns - monotonic_ns());
  answered_.wait_for(lock, std::chrono::nanoseconds(left), all_there);
  for (const size_t i : asked) {
    const auto found = answers_.find(of[i]);
    if (found != answers_.end()) answers[i].status = found->second;
  }
}

}  // namespace athanor
