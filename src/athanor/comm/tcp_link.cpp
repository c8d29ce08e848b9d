#include "athanor/comm/tcp_link.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr uint64_t line = 64;
constexpr int frames_at_a_time = 64;  // then others of the loop have their turn

uint64_t round_up(uint64_t bytes, uint64_t to) {
  return (bytes + to - 1) / to * to;
}

}  // namespace

TcpLink::TcpLink(int peer, EventLoop& loop, Bell& bell, Hooks hooks)
    : peer_(peer), loop_(loop), bell_(bell), hooks_(std::move(hooks)) {}

TcpLink::~TcpLink() = default;

void TcpLink::post(const MessageHeader& header, const std::byte* data) {
  ATHANOR_ASSERT(header.bytes > 0, "an empty message");
  const std::lock_guard lock(mutex_);
  ++posted_;
  messages_.push_back({header, data, 0});
  if (channel(Side::outgoing).socket.is_open()) write(Side::outgoing);
}

uint64_t TcpLink::taken() {
  return taken_.load(std::memory_order_seq_cst);
}

const MessageHeader* TcpLink::front() {
  if (!fragment_) begin_fragment();
  return in_message_ ? &header_ : nullptr;
}

std::span<const std::byte> TcpLink::readable() {
  if (!fragment_) begin_fragment();
  if (!fragment_) return {};
  return {ring_.data() + fragment_->offset, fragment_->bytes};
}

void TcpLink::begin_fragment() {
  if (arrived_.load(std::memory_order_seq_cst) == begun_) return;
  {
    const std::lock_guard lock(mutex_);
    fragment_ = fragments_.front();
    fragments_.pop_front();
  }
  ++begun_;
  if (!in_message_) {
    header_ = fragment_->header;
    message_left_ = header_.bytes;
  }
  if (fragment_->header != header_ || fragment_->bytes > message_left_)
    throw Error(ErrorKind::restart_worker, fmt::format("messages from rank {} are out of order", peer_));
  in_message_ = true;
}

void TcpLink::take(size_t bytes) {
  ATHANOR_ASSERT(fragment_ && bytes > 0 && bytes <= fragment_->bytes, "{} bytes", bytes);
  fragment_->offset += bytes;
  fragment_->bytes -= bytes;
  message_left_ -= bytes;
  if (message_left_ == 0) in_message_ = false;
  if (fragment_->bytes > 0) return;
  const std::lock_guard lock(mutex_);
  ring_tail_ = fragment_->ring_end;
  fragment_.reset();
  for (const Side side : {Side::outgoing, Side::incoming}) {
    if (!channel(side).paused) continue;
    channel(side).paused = false;
    heard_ns_ = monotonic_ns();
    update_events(channel(side));
    loop_.post([this, side] { on_event(side, EPOLLIN); });  // it may no longer be watched
  }
}

void TcpLink::add_channel(Side side, Descriptor socket, const std::string& failure) {
  const int number = socket.number();
  {
    const std::lock_guard lock(mutex_);
    Channel& added = channel(side);
    added = Channel{};
    added.socket = std::move(socket);
    heard_ns_ = monotonic_ns();
    if (side == Side::incoming && ring_.empty()) ring_.resize(ring_bytes);
    if (!failure.empty()) controls_.emplace_back(FrameType::failure, failure);
  }
  loop_.watch(number, EPOLLIN, [this, side](uint32_t events) { on_event(side, events); });
  const std::lock_guard lock(mutex_);
  write(side);
}

void TcpLink::close_channels() {
  const std::lock_guard lock(mutex_);
  for (Channel& each : channels_) {
    if (!each.socket.is_open()) continue;
    loop_.forget(each.socket.number());
    each.socket.close();
  }
}

void TcpLink::shut_down() {
  const std::lock_guard lock(mutex_);
  shuts_down_ = true;
  write(Side::outgoing);
  write(Side::incoming);
}

bool TcpLink::has_unsent() {
  const std::lock_guard lock(mutex_);
  bool open = false, begun = false;
  for (const Channel& each : channels_) {
    open = open || each.socket.is_open();
    begun = begun || (each.socket.is_open() && each.frame);
  }
  return begun || (open && !(messages_.empty() && controls_.empty()));
}

void TcpLink::forgive(int64_t lost_ns) {
  const std::lock_guard lock(mutex_);
  heard_ns_ += lost_ns;
}

int64_t TcpLink::last_heard_ns() {
  const std::lock_guard lock(mutex_);
  for (const Channel& each : channels_)
    if (each.paused) return monotonic_ns();
  return heard_ns_;
}

bool TcpLink::has_channel() {
  const std::lock_guard lock(mutex_);
  return channels_[0].socket.is_open() || channels_[1].socket.is_open();
}

bool TcpLink::send_control(FrameType type, std::string payload) {
  const std::lock_guard lock(mutex_);
  const Side side = channel(Side::outgoing).socket.is_open() ? Side::outgoing : Side::incoming;
  if (!channel(side).socket.is_open()) return false;
  // Nobody needs more heartbeats than can be sent.
  if (type == FrameType::heartbeat && (shuts_down_ || !controls_.empty())) return true;
  controls_.emplace_back(type, std::move(payload));
  write(side);
  return true;
}

void TcpLink::drop_messages() {
  const std::lock_guard lock(mutex_);
  messages_.clear();
  // What has begun must end, or the peer could not read what comes behind it.
  for (Channel& each : channels_) {
    if (!each.frame || each.frame->payload == nullptr) continue;
    each.frame->owned.assign(reinterpret_cast<const char*>(each.frame->payload), each.frame->payload_bytes);
    each.frame->payload = nullptr;
  }
}

// Chooses what this channel sends next; false if there is nothing.
bool TcpLink::next_frame(Side side) {
  Channel& to = channel(side);
  OutgoingFrame next;
  Frame frame;
  const bool control_here = side == Side::outgoing || !channel(Side::outgoing).socket.is_open();
  if (!controls_.empty() && control_here) {
    frame.type = controls_.front().first;
    next.owned = std::move(controls_.front().second);
    next.owned.resize(std::min<size_t>(next.owned.size(), Frame::most_control));
    controls_.pop_front();
    next.payload_bytes = next.owned.size();
  } else if (side == Side::outgoing && !messages_.empty()) {
    Message& message = messages_.front();
    frame.message = message.header;
    next.payload = message.data + message.sent;
    next.payload_bytes = std::min<uint64_t>(Frame::most_data, message.header.bytes - message.sent);
    message.sent += next.payload_bytes;
    next.ends_message = message.sent == message.header.bytes;
    if (next.ends_message) messages_.pop_front();
  } else if (shuts_down_ && !to.said_goodbye) {
    frame.type = FrameType::goodbye;
    to.said_goodbye = true;
  } else {
    return false;
  }
  const std::byte* const payload =
      next.payload != nullptr ? next.payload : reinterpret_cast<const std::byte*>(next.owned.data());
  frame.payload_bytes = static_cast<uint32_t>(next.payload_bytes);
  frame.payload_checksum = crc32c({payload, next.payload_bytes});
  frame.number = to.frames_sent++;
  next.header = encode_frame(frame);
  to.frame = std::move(next);
  return true;
}

void TcpLink::write(Side side) {
  Channel& to = channel(side);
  if (!to.socket.is_open()) return;
  while (to.frame || next_frame(side)) {
    OutgoingFrame& frame = *to.frame;
    const std::byte* const payload =
        frame.payload != nullptr ? frame.payload : reinterpret_cast<const std::byte*>(frame.owned.data());
    const size_t header_left = frame.header.size() - std::min(frame.header.size(), frame.sent);
    const size_t payload_sent = frame.sent - (frame.header.size() - header_left);
    std::array<iovec, 2> pieces{};
    pieces[0] = {frame.header.data() + frame.header.size() - header_left, header_left};
    pieces[1] = {const_cast<std::byte*>(payload) + payload_sent, frame.payload_bytes - payload_sent};
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = pieces.size();
    const ssize_t sent = sendmsg(to.socket.number(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && errno == EINTR) continue;
    if (sent < 0) {
      // The loop sees a broken connection too, and says so.
      to.wants_to_write = errno == EAGAIN || errno == EWOULDBLOCK;
      update_events(to);
      return;
    }
    frame.sent += static_cast<size_t>(sent);
    if (frame.sent < frame.header.size() + frame.payload_bytes) continue;
    const bool ends_message = frame.ends_message;
    to.frame.reset();
    if (ends_message) {
      taken_.fetch_add(1, std::memory_order_seq_cst);
      bell_.ring();
    }
  }
  if (to.wants_to_write) {
    to.wants_to_write = false;
    update_events(to);
  }
  if (shuts_down_ && to.socket.is_open()) shutdown(to.socket.number(), SHUT_WR);
}

void TcpLink::update_events(Channel& channel) {
  if (!channel.socket.is_open()) return;
  const uint32_t reading = channel.paused || channel.read_ended ? 0U : static_cast<uint32_t>(EPOLLIN);
  loop_.change(channel.socket.number(),
               reading | (channel.wants_to_write ? static_cast<uint32_t>(EPOLLOUT) : 0U));
}

void TcpLink::on_event(Side side, uint32_t events) {
  if ((events & EPOLLOUT) != 0) {
    const std::lock_guard lock(mutex_);
    write(side);
  }
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) == 0 || !channel(side).socket.is_open()) return;
  std::string problem;
  const ReadEnd end = read(side, problem);
  if (end == ReadEnd::would_block) return;
  if (end == ReadEnd::paused) {
    // The end is reported over and over, and what came before it has not been read.
    if ((events & (EPOLLHUP | EPOLLERR)) != 0) loop_.forget(channel(side).socket.number());
    return;
  }
  const Side other = side == Side::outgoing ? Side::incoming : Side::outgoing;
  bool last = true;
  {
    const std::lock_guard lock(mutex_);
    Channel& ended = channel(side);
    loop_.forget(ended.socket.number());
    ended.socket.close();
    last = !channel(other).socket.is_open();
  }
  if (problem.empty()) problem = "closed the connection";
  if (end == ReadEnd::failed || (last && !peer_has_left_)) return hooks_.fail(peer_, problem);
  // On the other one its goodbye, or its reason to give up, may be on its way.
  ended_ns_ = monotonic_ns();
  end_problem_ = problem;
}

bool TcpLink::ended_before(int64_t time_ns) {
  if (ended_ns_ == 0 || ended_ns_ > time_ns || peer_has_left_) return false;
  {
    const std::lock_guard lock(mutex_);
    for (const Channel& each : channels_)
      if (each.paused) return false;  // there may be more behind it
  }
  ended_ns_ = 0;
  hooks_.fail(peer_, end_problem_);
  return true;
}

// Reads what there is, some frames at most.
TcpLink::ReadEnd TcpLink::read(Side side, std::string& problem) {
  Channel& from = channel(side);
  for (int frames = 0; frames < frames_at_a_time;) {
    if (!from.arriving) {
      const ReadEnd end = read_some(side, from.header.data(), from.header.size(), from.header_have, problem);
      if (from.header_have < from.header.size()) return end;
      from.arriving = decode_frame(from.header);
      if (!from.arriving || from.arriving->number != from.frames_received ||
          (from.arriving->type == FrameType::data && side != Side::incoming)) {
        problem = "sent bytes that are not a frame";
        return ReadEnd::failed;
      }
      from.payload_have = 0;
      from.ring_end = 0;
    }
    const size_t bytes = from.arriving->payload_bytes;
    std::byte* target = nullptr;
    if (from.arriving->type == FrameType::data) {
      const std::lock_guard lock(mutex_);
      if (from.ring_end == 0 && !reserve_in_ring(from, bytes)) {
        from.paused = true;
        update_events(from);
        return ReadEnd::paused;
      }
      target = ring_.data() + from.ring_offset;
    } else {
      from.control.resize(bytes);
      target = reinterpret_cast<std::byte*>(from.control.data());
    }
    const ReadEnd end = read_some(side, target, bytes, from.payload_have, problem);
    if (from.payload_have < bytes) return end;
    if (crc32c({target, bytes}) != from.arriving->payload_checksum) {
      problem = "sent a frame that was damaged on its way";
      return ReadEnd::failed;
    }
    problem = finish_frame(from);
    if (!problem.empty()) return ReadEnd::failed;
    ++frames;
  }
  return ReadEnd::would_block;
}

TcpLink::ReadEnd TcpLink::read_some(Side side, std::byte* to, size_t wanted, size_t& have,
                                    std::string& problem) {
  while (have < wanted) {
    const ssize_t got = recv(channel(side).socket.number(), to + have, wanted - have, MSG_DONTWAIT);
    if (got > 0) {
      have += static_cast<size_t>(got);
      continue;
    }
    if (got < 0 && errno == EINTR) continue;
    if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return ReadEnd::would_block;
    problem =
        got == 0 ? "closed the connection" : fmt::format("broke the connection: {}", std::strerror(errno));
    return ReadEnd::ended;
  }
  const std::lock_guard lock(mutex_);
  heard_ns_ = monotonic_ns();
  return ReadEnd::would_block;
}

// Room for `bytes` in one piece; the ring begins anew when it is empty.
bool TcpLink::reserve_in_ring(Channel& channel, uint64_t bytes) {
  if (ring_head_ == ring_tail_) ring_head_ = ring_tail_ = round_up(ring_head_, ring_bytes);
  uint64_t begin = ring_head_;
  if (begin % ring_bytes + bytes > ring_bytes) begin = round_up(begin, ring_bytes);
  const uint64_t end = begin + round_up(bytes, line);
  if (end - ring_tail_ > ring_bytes) return false;
  channel.ring_offset = begin % ring_bytes;
  channel.ring_end = ring_head_ = end;
  return true;
}

std::string TcpLink::finish_frame(Channel& channel) {
  const Frame frame = *channel.arriving;
  channel.arriving.reset();
  channel.header_have = 0;
  ++channel.frames_received;
  if (frame.type == FrameType::data) {
    if (channel.heard_goodbye) return "sent data after its goodbye";
    const std::lock_guard lock(mutex_);
    fragments_.push_back({frame.message, channel.ring_offset, frame.payload_bytes, channel.ring_end});
    arrived_.fetch_add(1, std::memory_order_seq_cst);
    bell_.ring();
  } else if (frame.type == FrameType::goodbye) {
    channel.heard_goodbye = peer_has_left_ = true;
  } else if (frame.type != FrameType::heartbeat) {
    hooks_.control(peer_, frame.type, channel.control);
  }
  return {};
}

}  // namespace athanor
