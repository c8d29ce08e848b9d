// A listening socket that lets nobody in who has not proven the job's secret.
//
// Called by tcp_network.h and by the store's server. Thread safety: everything but the constructor in the
// loop's thread.
//
// Who has connected is a stranger until his hello has been found right: he gets a challenge, and no more than
// the fixed bytes of a hello are read from him. He is dropped after `introduction_ns`; when there are too
// many, or the process runs out of descriptors, the oldest go first.
#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <string>

#include "athanor/comm/event_loop.h"
#include "athanor/comm/wire.h"

namespace athanor {

struct DoorkeeperOptions {
  std::string address;  // numeric, of this machine
  uint16_t port = 0;    // 0: any
  size_t most_strangers = 128;
  int64_t introduction_ns = 5'000'000'000;
};

class Doorkeeper {
 public:
  using Expects = std::function<bool(const Introduction&)>;
  using Admit = std::function<void(const Introduction&, Descriptor socket)>;
  // Listens from now on, but accepts only once it is open; throws a user error if it cannot. Whoever has the
  // secret and is expected is admitted, after his welcome has been sent. `secret` must outlive it.
  Doorkeeper(const Secret& secret, EventLoop& loop, DoorkeeperOptions options, Expects expects, Admit admit);

  uint16_t port() const { return port_; }
  void open();
  void close();  // drops all strangers; the socket listens on, unheard
  void tick();   // every now and then
  size_t strangers() const { return strangers_.size(); }

 private:
  struct Stranger {
    Descriptor socket;
    Challenge challenge{};
    Hello hello{};
    size_t have = 0;
    int64_t deadline_ns = 0;
  };
  using Strangers = std::list<Stranger>;

  void listen();
  void accept_all();
  void hear(Strangers::iterator stranger);
  void drop(Strangers::iterator stranger);

  const Secret& secret_;
  EventLoop& loop_;
  const DoorkeeperOptions options_;
  const Expects expects_;
  const Admit admit_;
  Descriptor listener_;
  uint16_t port_ = 0;
  bool open_ = false, resting_ = false;
  Strangers strangers_;  // the oldest first
};

}  // namespace athanor
