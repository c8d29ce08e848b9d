// The connections of a rank to ranks of other hosts: listening, connecting, introductions, signs of life.
//
// Called by host_transport.cpp. Thread safety: link from the thread of the rank's collectives, broadcast and
// request_statuses from any; the rest happens in the loop's thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/comm/doorkeeper.h"
#include "athanor/comm/event_loop.h"
#include "athanor/comm/host_transport.h"
#include "athanor/comm/introduction.h"
#include "athanor/comm/tcp_link.h"

namespace athanor {

class TcpNetwork {
 public:
  // What went wrong, or, handed on, the reason for which a peer gave up.
  using Fail = std::function<void(const std::string& what, bool handed_on)>;
  // Listens from now on; throws a user error if it cannot. `fail` is called in the loop's thread.
  TcpNetwork(const HostTransportOptions& options, EventLoop& loop, RankBoard& board, Fail fail);
  // Says goodbye and waits a while for the peers to have read everything. The board says by then that this
  // rank has left.
  ~TcpNetwork();

  uint16_t port() const { return doorkeeper_.port(); }
  // The link to a peer; the connection is made in the background.
  Link& link(const HostAddress& peer);
  void tick(int64_t lost_ns);  // lost: in which this process was stopped
  void broadcast_failure(const std::string& reason);
  // Asks those of whom nothing is known and to whom there is a connection; fills in who answers until then.
  void request_statuses(std::span<const int> of, std::vector<RankAnswer>& answers, int64_t until_ns);

 private:
  // A connection that this rank is making.
  struct Attempt {
    HostAddress peer;
    std::optional<OutgoingIntroduction> introduction{};  // while it is being tried
    int64_t deadline_ns = 0, retry_ns = 0;
    int64_t refused_ns = 0;  // since when nobody listens there; 0: somebody does, or it is not known
    std::string last_problem;
  };
  using Attempts = std::list<Attempt>;

  bool expects(const Introduction& introduction) const;
  void begin(const HostAddress& peer);
  void try_to_connect(Attempt& attempt);
  void go_on(Attempts::iterator attempt);
  void end_try(Attempt& attempt);
  void retry_later(Attempt& attempt, std::string problem);
  TcpLink& link_to(int rank);
  void add_channel(int peer, TcpLink::Side side, Descriptor socket);
  std::vector<TcpLink*> links();
  void on_control(int peer, FrameType type, const std::string& payload);
  std::string name_of_peer(int rank);

  const HostTransportOptions& options_;
  EventLoop& loop_;
  RankBoard& board_;
  const Fail fail_;
  Doorkeeper doorkeeper_;
  Attempts attempts_;
  std::atomic<int> connecting_{0};  // attempts that have a socket
  int64_t last_heartbeat_ns_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::map<int, std::unique_ptr<TcpLink>> links_;
  std::map<int, HostAddress> addresses_;
  std::map<int, RankStatus> answers_;
};

}  // namespace athanor
