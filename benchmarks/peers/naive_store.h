// What bench_rendezvous measures beside its own: a store that serves its clients one after another with poll
// and blocking reads, field by field, and a start-up that has a barrier of all ranks after each group.
//
// It is spared the exchange of addresses, and its clients ask once for each barrier instead of again and
// again.
#pragma once

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <map>
#include <vector>

#include "athanor/base/clock.h"

namespace athanor {

class NaiveStore {
 public:
  NaiveStore() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    bind(listener_, reinterpret_cast<sockaddr*>(&where), sizeof where);
    listen(listener_, 4096);
    socklen_t length = sizeof where;
    getsockname(listener_, reinterpret_cast<sockaddr*>(&where), &length);
    port_ = ntohs(where.sin_port);
  }
  uint16_t port() const { return port_; }

  void serve(const std::atomic<int>& stop) {
    std::vector<pollfd> watched = {{listener_, POLLIN, 0}};
    while (stop == 0) {
      if (poll(watched.data(), watched.size(), 100) <= 0) continue;
      const size_t count = watched.size();
      for (size_t i = 1; i < count; ++i)
        if (watched[i].revents != 0 && !serve_one(watched[i].fd)) watched[i].fd = -1;
      if (watched[0].revents != 0) watched.push_back({accept(listener_, nullptr, nullptr), POLLIN, 0});
    }
  }

 private:
  struct Counter {
    uint32_t value = 0;
    std::map<int, uint32_t> waiting;  // socket, target
  };

  static bool read_all(int from, void* to, size_t bytes) {
    return recv(from, to, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
  }
  static void reply(int to) {
    const char done = 1;
    (void)!send(to, &done, 1, MSG_NOSIGNAL);
  }

  bool serve_one(int client) {
    char what = 0;
    uint32_t key = 0, target = 0;
    if (!read_all(client, &what, sizeof what) || !read_all(client, &key, sizeof key)) return false;
    Counter& counter = counters_[key];
    if (what == 'A') {
      ++counter.value;
      reply(client);
      for (auto each = counter.waiting.begin(); each != counter.waiting.end();) {
        if (each->second > counter.value) {
          ++each;
          continue;
        }
        reply(each->first);
        each = counter.waiting.erase(each);
      }
      return true;
    }
    if (!read_all(client, &target, sizeof target)) return false;
    if (counter.value >= target)
      reply(client);
    else
      counter.waiting[client] = target;
    return true;
  }

  int listener_;
  uint16_t port_ = 0;
  std::map<uint32_t, Counter> counters_;
};

// `clients` of `ranks` ranks go through all barriers. False if they have not by `deadline_ns`.
inline bool run_naive_clients(uint16_t port, int clients, int ranks, int barriers, int64_t deadline_ns) {
  struct Client {
    int socket = -1;
    int barrier = 0;
    bool waits = false;
  };
  std::vector<Client> all(static_cast<size_t>(clients));
  const int events = epoll_create1(EPOLL_CLOEXEC);
  const auto ask = [&](Client& client) {
    std::array<char, 9> message{};
    const auto key = static_cast<uint32_t>(client.barrier), target = static_cast<uint32_t>(ranks);
    message[0] = client.waits ? 'W' : 'A';
    std::memcpy(message.data() + 1, &key, 4);
    std::memcpy(message.data() + 5, &target, 4);
    (void)!send(client.socket, message.data(), client.waits ? 9 : 5, MSG_NOSIGNAL);
  };
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].socket = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in where{};
    where.sin_family = AF_INET;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    where.sin_port = htons(port);
    if (connect(all[i].socket, reinterpret_cast<sockaddr*>(&where), sizeof where) != 0) return false;
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u64 = i;
    epoll_ctl(events, EPOLL_CTL_ADD, all[i].socket, &event);
    ask(all[i]);
  }
  std::array<epoll_event, 256> ready{};
  for (int left = clients; left > 0;) {
    if (monotonic_ns() > deadline_ns) return false;
    const int count = epoll_wait(events, ready.data(), static_cast<int>(ready.size()), 100);
    for (int i = 0; i < count; ++i) {
      Client& client = all[ready[static_cast<size_t>(i)].data.u64];
      char done = 0;
      if (recv(client.socket, &done, 1, MSG_DONTWAIT) != 1) continue;
      if (client.waits && ++client.barrier == barriers) {
        --left;
        continue;
      }
      client.waits = !client.waits;
      ask(client);
    }
  }
  return true;
}

}  // namespace athanor
