// A client's connection to the store's server: introduction, requests, replies; nothing blocks.
//
// Called by store_client.cpp, and by benchmarks that hold thousands. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "athanor/comm/introduction.h"
#include "athanor/store/store_protocol.h"

namespace athanor {

struct StoreAnswer {
  StoreStatus status = StoreStatus::value;
  uint64_t number = 0;
  std::vector<std::string> pieces;  // bodies
};

class StoreConnection {
 public:
  StoreConnection() = default;
  // Begins to connect; `rank` is who asks.
  StoreConnection(const SocketAddress& to, int rank);

  void send(std::string request) { output_ += request; }  // encoded
  // Does what the socket allows; the next answer if it is there. What is received is kept as it comes: a size
  // that is announced allocates nothing.
  std::optional<StoreAnswer> advance(const Secret& secret);

  bool failed() const { return !problem_.empty(); }
  bool introduced() const { return socket_.is_open(); }
  const std::string& problem() const { return problem_; }
  int socket() const { return introduced() ? socket_.number() : introduction_.socket(); }
  uint32_t events() const;  // of epoll and poll that it waits for

 private:
  std::optional<StoreAnswer> take_answer();
  void receive();
  void fail(std::string problem) { problem_ = std::move(problem); }

  OutgoingIntroduction introduction_;
  Descriptor socket_;
  std::string output_, input_;
  size_t needed_ = 0;  // bytes of input without which no answer is complete
  std::string problem_;
};

}  // namespace athanor
