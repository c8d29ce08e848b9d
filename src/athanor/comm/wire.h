// What ranks of different hosts say to each other over TCP, byte by byte: docs/formats/wire.md.
//
// Called by tcp_link.h and tcp_network.h. Thread safety: pure functions. Readers trust nothing.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "athanor/comm/secret.h"
#include "athanor/comm/transport.h"

namespace athanor {

enum class FrameType : uint32_t {
  data = 1,        // bytes of a message
  heartbeat,       // nothing
  status_request,  // nothing
  status,          // a RankStatus
  failure,         // text: why the sender gave up
  goodbye,         // nothing: the sender ends, its work is done
};

struct Frame {
  static constexpr size_t header_bytes = 64;
  static constexpr uint32_t most_data = 128 << 10, most_control = 8 << 10;  // bytes of payload
  FrameType type = FrameType::data;
  uint32_t payload_bytes = 0, payload_checksum = 0;
  MessageHeader message;  // of data
  uint64_t number = 0;    // of the frame on its connection and direction
};
using FrameHeader = std::array<std::byte, Frame::header_bytes>;

FrameHeader encode_frame(const Frame& frame);
// Empty if these bytes are not a frame header, or one of an impossible frame.
std::optional<Frame> decode_frame(const FrameHeader& bytes);

std::string encode_status(const RankStatus& status);
std::optional<RankStatus> decode_status(std::string_view bytes);

// How a connection begins. The accepting side speaks first: challenge, then hello, then welcome; until a
// hello has been found right, nothing else is read.
struct Introduction {
  int from = -1, to = -1;  // ranks: who connects to whom
  uint64_t generation = 0;
  bool operator==(const Introduction&) const = default;
};
using Challenge = std::array<std::byte, 40>;
using Hello = std::array<std::byte, 88>;
using Welcome = std::array<std::byte, 32>;

Challenge make_challenge(const Secret::Nonce& nonce);
// Empty if it is not a challenge.
std::optional<Hello> answer_challenge(const Secret& secret, const Challenge& challenge,
                                      const Introduction& introduction, const Secret::Nonce& nonce);
// Empty unless whoever wrote it has the secret and answers this challenge.
std::optional<Introduction> check_hello(const Secret& secret, const Challenge& challenge, const Hello& hello);
Welcome make_welcome(const Secret& secret, const Challenge& challenge, const Hello& hello);

}  // namespace athanor
