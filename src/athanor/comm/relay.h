// A process between the ranks of a test that forwards what they send each other, until the cable is cut.
#pragma once

#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <memory>
#include <vector>

#include "athanor/comm/process_ranks.h"
#include "athanor/comm/socket_address.h"

namespace athanor {

class Relay {
 public:
  // Waits until the ranks have addresses, and puts itself in front of them.
  Relay(Meeting& meeting, int ranks) {
    std::vector<Descriptor> listeners;
    std::vector<uint16_t> targets;
    for (size_t rank = 0; rank < static_cast<size_t>(ranks); ++rank) {
      while (meeting.have_address[rank] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      const auto any = socket_address("127.0.0.1", 0);
      listeners.push_back(tcp_socket(AF_INET));
      if (bind(listeners.back().number(), any->data(), any->length) != 0 ||
          listen(listeners.back().number(), 10) != 0)
        throw_user_error("the relay cannot listen");
      targets.push_back(parse_host_address(meeting.addresses[rank].data()).port);
    }
    process_ = fork();
    if (process_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      forward(listeners, targets);
    }
    meeting.relay = process_;
    for (size_t rank = 0; rank < listeners.size(); ++rank)
      meeting.relay_port[rank] = port_of_socket(listeners[rank].number());
  }
  ~Relay() {
    kill(process_, SIGKILL);
    waitpid(process_, nullptr, 0);
  }
  Relay(const Relay&) = delete;
  void cut() { kill(process_, SIGSTOP); }

 private:
  // One of two sockets; what comes out of each goes into the other.
  struct End {
    Descriptor socket;
    std::vector<char> pending;  // not yet written to it; until it is, nothing is read from the other
  };
  [[noreturn]] static void forward(const std::vector<Descriptor>& listeners,
                                   const std::vector<uint16_t>& targets) {
    std::vector<End> ends;  // pairs
    std::vector<char> buffer(1 << 16);
    while (true) {
      std::vector<pollfd> waiting;
      for (const auto& each : listeners) waiting.push_back({each.number(), POLLIN, 0});
      for (size_t i = 0; i < ends.size(); ++i) {
        short events = 0;
        if (ends[i ^ 1].pending.empty()) events |= POLLIN;
        if (!ends[i].pending.empty()) events |= POLLOUT;
        waiting.push_back({ends[i].socket.number(), events, 0});
      }
      poll(waiting.data(), waiting.size(), -1);
      for (size_t i = 0; i < waiting.size(); ++i) {
        if (waiting[i].revents == 0) continue;
        if (i < listeners.size()) {
          connect_pair(waiting[i].fd, targets[i], ends);
          continue;
        }
        End& end = ends[i - listeners.size()];
        End& other = ends[(i - listeners.size()) ^ 1];
        if (!end.pending.empty()) pass_on(end);
        if (!other.pending.empty()) continue;
        const ssize_t got = recv(end.socket.number(), buffer.data(), buffer.size(), MSG_DONTWAIT);
        if (got < 0 && errno == EAGAIN) continue;
        if (got <= 0) std::_Exit(0);
        other.pending.assign(buffer.begin(), buffer.begin() + got);
        pass_on(other);
      }
    }
  }
  static void connect_pair(int listener, uint16_t target, std::vector<End>& ends) {
    Descriptor one(accept(listener, nullptr, nullptr)), other(socket(AF_INET, SOCK_STREAM, 0));
    const auto where = socket_address("127.0.0.1", target);
    if (connect(other.number(), where->data(), where->length) != 0) std::_Exit(1);
    ends.push_back({std::move(one), {}});
    ends.push_back({std::move(other), {}});
  }
  static void pass_on(End& end) {
    const ssize_t sent =
        send(end.socket.number(), end.pending.data(), end.pending.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno != EAGAIN) std::_Exit(0);
    if (sent > 0) end.pending.erase(end.pending.begin(), end.pending.begin() + sent);
  }

  pid_t process_ = 0;
};

}  // namespace athanor
