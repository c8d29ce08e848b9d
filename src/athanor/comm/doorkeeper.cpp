#include "athanor/comm/doorkeeper.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/introduction.h"
#include "athanor/comm/socket_address.h"

namespace athanor {

Doorkeeper::Doorkeeper(const Secret& secret, EventLoop& loop, DoorkeeperOptions options, Expects expects,
                       Admit admit)
    : secret_(secret),
      loop_(loop),
      options_(std::move(options)),
      expects_(std::move(expects)),
      admit_(std::move(admit)) {
  const auto where = socket_address(options_.address, options_.port);
  if (!where)
    throw_user_error(fmt::format("'{}' is not a numeric IP address to listen on", options_.address),
                     "for example 127.0.0.1 or 10.0.0.5");
  listener_ = tcp_socket(where->storage.ss_family);
  const int on = 1;
  // A port that is named may still have connections of the one that listened there before.
  setsockopt(listener_.number(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!listener_.is_open() || bind(listener_.number(), where->data(), where->length) != 0 ||
      ::listen(listener_.number(), 4096) != 0)
    throw_user_error(
        fmt::format("cannot listen on {} port {}: {}", options_.address, options_.port, std::strerror(errno)),
        options_.port == 0 ? "use an address of this machine"
                           : "use an address of this machine and a port that nobody uses");
  port_ = port_of_socket(listener_.number());
}

void Doorkeeper::open() {
  open_ = true;
  listen();
}

void Doorkeeper::close() {
  if (open_ && !resting_) loop_.forget(listener_.number());
  open_ = resting_ = false;
  while (!strangers_.empty()) drop(strangers_.begin());
}

void Doorkeeper::listen() {
  loop_.watch(listener_.number(), EPOLLIN, [this](uint32_t) { accept_all(); });
}

void Doorkeeper::tick() {
  const int64_t now = monotonic_ns();
  while (!strangers_.empty() && strangers_.front().deadline_ns < now) drop(strangers_.begin());
  if (resting_) {
    resting_ = false;
    listen();
  }
}

void Doorkeeper::accept_all() {
  while (true) {
    Descriptor socket(accept4(listener_.number(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket.is_open()) {
      if (errno == EINTR || errno == ECONNABORTED) continue;
      if (errno == EAGAIN || errno == EWOULDBLOCK) return;
      // Out of descriptors, or of memory: whoever has not said who he is makes room. Where all have, those
      // outside wait until the next tick.
      if (!strangers_.empty()) {
        drop(strangers_.begin());
        continue;
      }
      loop_.forget(listener_.number());
      resting_ = true;
      return;
    }
    if (strangers_.size() >= options_.most_strangers) drop(strangers_.begin());
    set_low_delay(socket.number());
    strangers_.emplace_back();
    const auto stranger = std::prev(strangers_.end());
    stranger->challenge = make_challenge(random_nonce());
    stranger->deadline_ns = monotonic_ns() + options_.introduction_ns;
    const bool written = write_introduction(socket.number(), stranger->challenge);
    stranger->socket = std::move(socket);
    loop_.watch(stranger->socket.number(), EPOLLIN, [this, stranger](uint32_t) { hear(stranger); });
    if (!written) drop(stranger);
  }
}

void Doorkeeper::drop(Strangers::iterator stranger) {
  loop_.forget(stranger->socket.number());
  strangers_.erase(stranger);
}

void Doorkeeper::hear(Strangers::iterator stranger) {
  const int state = read_introduction(stranger->socket.number(), stranger->hello, stranger->have);
  if (state == 0) return;
  const auto introduction =
      state > 0 ? check_hello(secret_, stranger->challenge, stranger->hello) : std::nullopt;
  if (!introduction || !expects_(*introduction) ||
      !write_introduction(stranger->socket.number(),
                          make_welcome(secret_, stranger->challenge, stranger->hello))) {
    drop(stranger);
    return;
  }
  loop_.forget(stranger->socket.number());
  Descriptor socket = std::move(stranger->socket);
  strangers_.erase(stranger);
  admit_(*introduction, std::move(socket));
}

}  // namespace athanor
