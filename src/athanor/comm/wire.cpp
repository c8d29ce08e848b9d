#include "athanor/comm/wire.h"

#include <algorithm>
#include <cstring>

#include "athanor/base/crc32c.h"
#include "athanor/base/little_endian.h"

namespace athanor {
namespace {

constexpr uint32_t magic = 0x31485441;  // "ATH1"
constexpr std::string_view greeting = "ATHANOR1";
constexpr size_t nonce_at = 8, hello_nonce_at = 24, hello_proof_at = 56;

Secret::Proof prove(const Secret& secret, std::string_view what, const Challenge& challenge,
                    const Hello& hello) {
  return secret.prove({bytes_of(what), challenge, std::span(hello).first(hello_proof_at)});
}

}  // namespace

FrameHeader encode_frame(const Frame& frame) {
  FrameHeader bytes{};
  put_little_endian(bytes, 0, magic);
  put_little_endian(bytes, 4, static_cast<uint32_t>(frame.type));
  put_little_endian(bytes, 8, frame.payload_bytes);
  put_little_endian(bytes, 12, frame.payload_checksum);
  put_little_endian(bytes, 16, frame.message.group);
  put_little_endian(bytes, 20, frame.message.signature);
  put_little_endian(bytes, 24, frame.message.sequence);
  put_little_endian(bytes, 32, frame.message.kind);
  put_little_endian(bytes, 36, frame.message.index);
  put_little_endian(bytes, 40, frame.message.bytes);
  put_little_endian(bytes, 48, frame.number);
  put_little_endian(bytes, 60, crc32c(std::span(bytes).first(60)));
  return bytes;
}

std::optional<Frame> decode_frame(const FrameHeader& bytes) {
  if (little_endian_at<uint32_t>(bytes, 0) != magic ||
      little_endian_at<uint32_t>(bytes, 60) != crc32c(std::span(bytes).first(60)) ||
      little_endian_at<uint32_t>(bytes, 56) != 0)
    return std::nullopt;
  const auto type = little_endian_at<uint32_t>(bytes, 4);
  if (type < static_cast<uint32_t>(FrameType::data) || type > static_cast<uint32_t>(FrameType::goodbye))
    return std::nullopt;
  Frame frame;
  frame.type = static_cast<FrameType>(type);
  frame.payload_bytes = little_endian_at<uint32_t>(bytes, 8);
  frame.payload_checksum = little_endian_at<uint32_t>(bytes, 12);
  frame.message.group = little_endian_at<int32_t>(bytes, 16);
  frame.message.signature = little_endian_at<uint32_t>(bytes, 20);
  frame.message.sequence = little_endian_at<uint64_t>(bytes, 24);
  frame.message.kind = little_endian_at<uint32_t>(bytes, 32);
  frame.message.index = little_endian_at<uint32_t>(bytes, 36);
  frame.message.bytes = little_endian_at<uint64_t>(bytes, 40);
  frame.number = little_endian_at<uint64_t>(bytes, 48);
  const bool data = frame.type == FrameType::data;
  if (frame.payload_bytes > (data ? Frame::most_data : Frame::most_control)) return std::nullopt;
  if (data && (frame.payload_bytes == 0 || frame.payload_bytes > frame.message.bytes)) return std::nullopt;
  return frame;
}

constexpr size_t status_header_bytes = 36;

std::string encode_status(const RankStatus& status) {
  std::string bytes(status_header_bytes, '\0');
  const auto writable = [&] { return std::as_writable_bytes(std::span(bytes)); };
  put_little_endian(writable(), 0, status.begun);
  put_little_endian(writable(), 8, status.completed);
  put_little_endian(writable(), 16, static_cast<uint64_t>(status.last.size()));
  put_little_endian(writable(), 24, static_cast<uint64_t>(status.phase.size()));
  put_little_endian(writable(), 32, status.awaited);
  for (const IssuedCollective& collective : status.last) {
    const size_t at = bytes.size();
    bytes.resize(at + 16);
    put_little_endian(writable(), at, collective.group);
    put_little_endian(writable(), at + 4, static_cast<uint32_t>(collective.kind));
    put_little_endian(writable(), at + 8, collective.sequence);
  }
  return bytes + status.phase + status.failure;
}

std::optional<RankStatus> decode_status(std::string_view text) {
  if (text.size() < status_header_bytes || text.size() > Frame::most_control) return std::nullopt;
  const auto bytes = bytes_of(text);
  RankStatus status;
  status.begun = little_endian_at<uint64_t>(bytes, 0);
  status.completed = little_endian_at<uint64_t>(bytes, 8);
  const auto collectives = little_endian_at<uint64_t>(bytes, 16),
             phase = little_endian_at<uint64_t>(bytes, 24);
  if (collectives > RankBoard::history || phase > RankBoard::phase_bytes ||
      status_header_bytes + collectives * 16 + phase > text.size())
    return std::nullopt;
  status.awaited = little_endian_at<int32_t>(bytes, 32);
  for (uint64_t i = 0; i < collectives; ++i) {
    const size_t at = status_header_bytes + i * 16;
    const auto kind = little_endian_at<uint32_t>(bytes, at + 4);
    if (kind >= collective_kind_count) return std::nullopt;
    status.last.push_back({little_endian_at<int32_t>(bytes, at), static_cast<CollectiveKind>(kind),
                           little_endian_at<uint64_t>(bytes, at + 8)});
  }
  const size_t texts = status_header_bytes + collectives * 16;
  status.phase = text.substr(texts, phase);
  status.failure = text.substr(texts + phase);
  return status;
}

Challenge make_challenge(const Secret::Nonce& nonce) {
  Challenge challenge{};
  std::ranges::copy(bytes_of(greeting), challenge.begin());
  std::ranges::copy(nonce, challenge.begin() + nonce_at);
  return challenge;
}

std::optional<Hello> answer_challenge(const Secret& secret, const Challenge& challenge,
                                      const Introduction& introduction, const Secret::Nonce& nonce) {
  if (!std::ranges::equal(std::span(challenge).first(nonce_at), bytes_of(greeting))) return std::nullopt;
  Hello hello{};
  std::ranges::copy(bytes_of(greeting), hello.begin());
  put_little_endian(hello, 8, introduction.from);
  put_little_endian(hello, 12, introduction.to);
  put_little_endian(hello, 16, introduction.generation);
  std::ranges::copy(nonce, hello.begin() + hello_nonce_at);
  std::ranges::copy(prove(secret, "athanor hello 1", challenge, hello), hello.begin() + hello_proof_at);
  return hello;
}

std::optional<Introduction> check_hello(const Secret& secret, const Challenge& challenge,
                                        const Hello& hello) {
  Secret::Proof proof{};
  std::copy_n(hello.begin() + hello_proof_at, proof.size(), proof.begin());
  if (!equal_proofs(proof, prove(secret, "athanor hello 1", challenge, hello))) return std::nullopt;
  return Introduction{little_endian_at<int32_t>(hello, 8), little_endian_at<int32_t>(hello, 12),
                      little_endian_at<uint64_t>(hello, 16)};
}

Welcome make_welcome(const Secret& secret, const Challenge& challenge, const Hello& hello) {
  return prove(secret, "athanor welcome 1", challenge, hello);
}

}  // namespace athanor
