#include "athanor/store/store_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "athanor/base/crc32c.h"

namespace athanor {
namespace {

constexpr const char* gone = "has closed the connection";
constexpr const char* nonsense = "does not speak as a store does";

}  // namespace

StoreConnection::StoreConnection(const SocketAddress& to, int rank)
    : introduction_(to, {.from = rank, .to = -1, .generation = 0}) {
  if (introduction_.state() == OutgoingIntroduction::State::failed) fail(introduction_.problem());
}

uint32_t StoreConnection::events() const {
  if (!introduced()) return introduction_.events();
  return output_.empty() ? uint32_t{EPOLLIN} : EPOLLIN | EPOLLOUT;
}

std::optional<StoreAnswer> StoreConnection::advance(const Secret& secret) {
  if (failed()) return std::nullopt;
  if (!introduced()) {
    switch (introduction_.advance(secret)) {
      case OutgoingIntroduction::State::failed:
        fail(introduction_.problem());
        return std::nullopt;
      case OutgoingIntroduction::State::done:
        socket_ = introduction_.take_socket();
        break;
      default:
        return std::nullopt;
    }
  }
  size_t put = 0;
  while (put < output_.size()) {
    const ssize_t wrote =
        ::send(socket_.number(), output_.data() + put, output_.size() - put, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) {
      if (errno != EAGAIN && errno != EWOULDBLOCK) fail(std::strerror(errno));
      break;
    }
    put += static_cast<size_t>(wrote);
  }
  output_.erase(0, put);
  receive();
  auto answer = take_answer();
  // An answer that came before the end counts.
  if (answer) problem_.clear();
  return answer;
}

void StoreConnection::receive() {
  std::array<char, 64 << 10> buffer;
  while (true) {
    const ssize_t got = recv(socket_.number(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      input_.append(buffer.data(), static_cast<size_t>(got));
      if (static_cast<size_t>(got) < buffer.size()) return;
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got == 0) fail(gone);
    if (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK) fail(std::strerror(errno));
    return;
  }
}

std::optional<StoreAnswer> StoreConnection::take_answer() {
  if (input_.size() < std::max(needed_, StoreReplyHeader::bytes)) return std::nullopt;
  const std::string_view input = input_;
  const auto header = decode_reply_header(input.substr(0, StoreReplyHeader::bytes));
  if (!header) {
    fail(nonsense);
    return std::nullopt;
  }
  StoreAnswer answer{header->status, header->number, {}};
  size_t at = StoreReplyHeader::bytes;
  std::vector<std::string_view> bodies;
  for (uint32_t i = 0; i < header->pieces; ++i) {
    needed_ = at + piece_header_bytes;
    if (input.size() < needed_) return std::nullopt;
    const auto piece = decode_piece_header(input.substr(at, piece_header_bytes));
    if (!piece) {
      fail(nonsense);
      return std::nullopt;
    }
    at += piece_header_bytes;
    needed_ = at + piece->bytes;
    if (input.size() < needed_) return std::nullopt;
    bodies.push_back(input.substr(at, piece->bytes));
    if (crc32c(bytes_of(bodies.back())) != piece->checksum) {
      fail("has sent a damaged answer");
      return std::nullopt;
    }
    at += piece->bytes;
  }
  const bool takes_input = !bodies.empty() && at == input_.size();
  for (size_t i = 0; i + (takes_input ? 1 : 0) < bodies.size(); ++i) answer.pieces.emplace_back(bodies[i]);
  if (takes_input) {
    // Most clients ask once, and keep what they got: thousands of addresses, in the memory where they came.
    input_.erase(0, at - bodies.back().size());
    answer.pieces.push_back(std::move(input_));
    input_ = {};
  } else {
    input_.erase(0, at);
  }
  needed_ = 0;
  return answer;
}

}  // namespace athanor
