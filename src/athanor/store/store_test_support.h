// Sockets that tests of the store hold: strangers, and thousands of clients in one thread.
#pragma once

#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/comm/socket_address.h"
#include "athanor/store/store.h"
#include "athanor/store/store_connection.h"

namespace athanor {

inline StoreOptions client_of(uint16_t port, int rank = 0, const char* secret = "test") {
  return {.address = {.redis = false, .host = "127.0.0.1", .port = port},
          .secret = Secret(secret),
          .rank = rank,
          .connect_timeout_ns = 10'000'000'000,
          .answer_timeout_ns = 10'000'000'000};
}

// Connects and says `text`, whatever the other side thinks of it.
inline Descriptor stranger(uint16_t port, const std::string& text = {}) {
  const auto where = socket_address("127.0.0.1", port);
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(socket.number(), where->data(), where->length) != 0) return {};
  if (!text.empty()) (void)!::send(socket.number(), text.data(), text.size(), MSG_NOSIGNAL);
  return socket;
}

// True once the other side has closed the connection; false after the time.
inline bool is_closed(const Descriptor& socket, int64_t within_ns) {
  const int64_t deadline = monotonic_ns() + within_ns;
  while (monotonic_ns() < deadline) {
    pollfd wanted{socket.number(), POLLIN, 0};
    if (poll(&wanted, 1, 20) <= 0) continue;
    char buffer[256];
    const ssize_t got = recv(socket.number(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (got == 0 || (got < 0 && errno != EAGAIN)) return true;
  }
  return false;
}

// Until `done`, or the time is over: false. Answers go to `take`.
inline bool drive(std::vector<StoreConnection>& connections, const std::function<bool()>& done,
                  const std::function<void(size_t, StoreAnswer)>& take, int64_t within_ns) {
  const Secret secret("test");
  const int64_t deadline = monotonic_ns() + within_ns;
  std::vector<pollfd> wanted(connections.size());
  while (!done() && monotonic_ns() < deadline) {
    for (size_t i = 0; i < connections.size(); ++i)
      wanted[i] = {connections[i].failed() ? -1 : connections[i].socket(),
                   static_cast<short>(connections[i].events()), 0};
    poll(wanted.data(), wanted.size(), 100);
    for (size_t i = 0; i < connections.size(); ++i)
      if (wanted[i].revents != 0)
        while (auto answer = connections[i].advance(secret)) take(i, std::move(*answer));
  }
  return done();
}

}  // namespace athanor
