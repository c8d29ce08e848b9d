// The connections of a rank to ranks of other hosts: listening, connecting, introductions, signs of life.
//
// Called by host_transport.cpp. Thread safety: link from the thread of the rank's collectives, broadcast and
// request_statuses from any; the rest happens in the loop's thread.
//
// A stranger (no secret, half a message, silence) is dropped after `introduction_ns`, the oldest ones earlier
// when there are many; he never gets further than the fixed bytes of a hello.
#pragma once

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

#include "athanor/comm/event_loop.h"
#include "athanor/comm/host_transport.h"
#include "athanor/comm/tcp_link.h"

namespace athanor {

class TcpNetwork {
 public:
  static constexpr size_t most_strangers = 128;
  static constexpr int64_t introduction_ns = 5'000'000'000;

  // What went wrong, or, handed on, the reason for which a peer gave up.
  using Fail = std::function<void(const std::string& what, bool handed_on)>;
  // Listens from now on; throws a user error if it cannot. `fail` is called in the loop's thread.
  TcpNetwork(const HostTransportOptions& options, EventLoop& loop, RankBoard& board, Fail fail);
  // Says goodbye and waits a while for the peers to have read everything.
  ~TcpNetwork();

  uint16_t port() const { return port_; }
  // The link to a peer; the connection is made in the background.
  Link& link(const HostAddress& peer);
  void tick();
  void broadcast_failure(const std::string& reason);
  // Fills in those that answer until then.
  void request_statuses(std::span<const int> of, std::vector<std::optional<RankStatus>>& statuses,
                        int64_t until_ns);

 private:
  // Somebody who has connected and not yet proven who he is.
  struct Stranger {
    Descriptor socket;
    Challenge challenge{};
    Hello hello{};
    size_t have = 0;
    int64_t deadline_ns = 0;
  };
  // A connection that this rank is making.
  struct Attempt {
    HostAddress peer;
    Descriptor socket;
    enum class Stage : uint8_t { waiting, connecting, challenge, welcome } stage = Stage::waiting;
    Challenge challenge{};
    Hello hello{};
    Welcome welcome{};
    size_t have = 0;
    int64_t deadline_ns = 0, retry_ns = 0;
    std::string last_problem;
  };
  using Strangers = std::list<Stranger>;
  using Attempts = std::list<Attempt>;

  void listen_on(const std::string& address);
  void accept_all();
  void hear_stranger(Strangers::iterator stranger);
  void drop(Strangers::iterator stranger);
  void begin(const HostAddress& peer);
  void try_to_connect(Attempt& attempt);
  void go_on(Attempts::iterator attempt);
  void retry_later(Attempt& attempt, const std::string& problem);
  TcpLink& link_to(int rank);
  std::vector<TcpLink*> links();
  void on_control(int peer, FrameType type, const std::string& payload);
  std::string name_of_peer(int rank);

  const HostTransportOptions& options_;
  EventLoop& loop_;
  RankBoard& board_;
  const Fail fail_;
  Descriptor listener_;
  uint16_t port_ = 0;
  Strangers strangers_;
  Attempts attempts_;
  int64_t last_heartbeat_ns_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable answered_;
  std::map<int, std::unique_ptr<TcpLink>> links_;
  std::map<int, HostAddress> addresses_;
  std::map<int, RankStatus> answers_;
};

}  // namespace athanor
