// Ranks as threads of one process: the transport of tests and of many ranks on one machine without processes.
//
// Called by tests and by whoever runs ranks in threads. Thread safety: each transport belongs to one rank's
// threads, see transport.h; the network must outlive its transports.
#pragma once

#include <memory>
#include <string>

#include "athanor/comm/mailbox.h"
#include "athanor/comm/transport.h"

namespace athanor {

class ThreadNetwork {
 public:
  explicit ThreadNetwork(int ranks);
  ~ThreadNetwork();
  // The transport of one rank, once each. `faults` are done to what it sends, to every peer alike.
  std::unique_ptr<Transport> attach(int rank, const MessageFaults& faults = {});

 private:
  friend class ThreadTransport;
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace athanor
