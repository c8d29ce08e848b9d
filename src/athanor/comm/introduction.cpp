#include "athanor/comm/introduction.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace athanor {

int read_introduction(int socket, std::span<std::byte> to, size_t& have) {
  while (have < to.size()) {
    const ssize_t got = recv(socket, to.data() + have, to.size() - have, MSG_DONTWAIT);
    if (got > 0)
      have += static_cast<size_t>(got);
    else if (got < 0 && errno == EINTR)
      continue;
    else
      return got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK) ? 0 : -1;
  }
  return 1;
}

bool write_introduction(int socket, std::span<const std::byte> bytes) {
  return send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT) ==
         static_cast<ssize_t>(bytes.size());
}

OutgoingIntroduction::OutgoingIntroduction(const SocketAddress& to, const Introduction& introduction)
    : socket_(tcp_socket(to.storage.ss_family)), introduction_(introduction) {
  if (!socket_.is_open()) {
    fail(std::strerror(errno));
    return;
  }
  set_low_delay(socket_.number());
  if (connect(socket_.number(), to.data(), to.length) != 0 && errno != EINPROGRESS) {
    fail_to_connect(errno);
    return;
  }
  state_ = State::connecting;
}

uint32_t OutgoingIntroduction::events() const {
  return state_ == State::connecting ? EPOLLOUT : EPOLLIN;
}

OutgoingIntroduction::State OutgoingIntroduction::fail(const char* problem) {
  problem_ = problem;
  return state_ = State::failed;
}

OutgoingIntroduction::State OutgoingIntroduction::fail_to_connect(int error) {
  refused_ = error == ECONNREFUSED;
  return fail(std::strerror(error));
}

OutgoingIntroduction::State OutgoingIntroduction::advance(const Secret& secret) {
  if (state_ == State::connecting) {
    int error = 0;
    socklen_t length = sizeof error;
    getsockopt(socket_.number(), SOL_SOCKET, SO_ERROR, &error, &length);
    if (error != 0) return fail_to_connect(error);
    state_ = State::challenge;
  }
  if (state_ == State::challenge) {
    const int state = read_introduction(socket_.number(), challenge_, have_);
    if (state == 0) return state_;
    const auto hello =
        state < 0 ? std::nullopt : answer_challenge(secret, challenge_, introduction_, random_nonce());
    if (!hello || !write_introduction(socket_.number(), *hello)) return fail("does not speak as a rank does");
    hello_ = *hello;
    have_ = 0;
    state_ = State::welcome;
  }
  if (state_ == State::welcome) {
    const int state = read_introduction(socket_.number(), welcome_, have_);
    if (state == 0) return state_;
    if (state < 0) return fail("refuses: another secret, generation or rank");
    if (!equal_proofs(welcome_, make_welcome(secret, challenge_, hello_)))
      return fail("does not have the job's secret");
    state_ = State::done;
  }
  return state_;
}

}  // namespace athanor
