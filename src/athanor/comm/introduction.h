// The connecting side of an introduction: connect, hear the challenge, say hello, check the welcome.
//
// Called by tcp_network.h and the store's client. Thread safety: one thread at a time.
// Nothing blocks: the owner waits for `events()` of `socket()` and then calls advance().
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "athanor/comm/socket_address.h"
#include "athanor/comm/wire.h"

namespace athanor {

class OutgoingIntroduction {
 public:
  enum class State : uint8_t { connecting, challenge, welcome, done, failed };

  OutgoingIntroduction() = default;
  // Begins to connect. Look at state(): it may have failed at once.
  OutgoingIntroduction(const SocketAddress& to, const Introduction& introduction);
  // Reads and writes what can be.
  State advance(const Secret& secret);

  State state() const { return state_; }
  int socket() const { return socket_.number(); }
  uint32_t events() const;                                 // of epoll and poll
  const std::string& problem() const { return problem_; }  // of one that failed, in words
  bool is_refused() const { return refused_; }             // nobody listens there
  Descriptor take_socket() { return std::move(socket_); }  // of one that is done

 private:
  State fail(const char* problem);
  State fail_to_connect(int error);

  Descriptor socket_;
  Introduction introduction_;
  State state_ = State::failed;
  Challenge challenge_{};
  Hello hello_{};
  Welcome welcome_{};
  size_t have_ = 0;
  std::string problem_;
  bool refused_ = false;
};

// Reads on to the end of `to`. 1: all there, 0: not yet, -1: the other side is gone.
int read_introduction(int socket, std::span<std::byte> to, size_t& have);
// The few bytes of an introduction always fit into the buffer of a new connection; false: it is gone.
bool write_introduction(int socket, std::span<const std::byte> bytes);

}  // namespace athanor
