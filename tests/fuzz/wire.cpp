// Any bytes as what a peer sends: a frame header, as it is and with the right checksum, which a fuzzer would
// never guess; a status; a hello; a challenge; the address of a rank.

#include "athanor/comm/wire.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/comm/host_transport.h"

namespace {

using namespace athanor;

void use_frame(const FrameHeader& bytes) {
  const auto frame = decode_frame(bytes);
  if (!frame) return;
  ATHANOR_ASSERT(frame->payload_bytes <= Frame::most_data);
  ATHANOR_ASSERT(frame->type != FrameType::data || frame->payload_bytes > 0);
  ATHANOR_ASSERT(encode_frame(*frame) == bytes);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  FrameHeader header{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, header.size()), header.begin());
  use_frame(header);
  const uint32_t checksum = crc32c(std::span(header).first(60));
  for (size_t i = 0; i < 4; ++i) header[60 + i] = static_cast<std::byte>(checksum >> (8 * i));
  use_frame(header);

  if (const auto status = decode_status(text)) ATHANOR_ASSERT(encode_status(*status) == text);

  const Secret secret("fuzz");
  Challenge challenge{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, challenge.size()), challenge.begin());
  Hello hello{};
  std::copy_n(reinterpret_cast<const std::byte*>(data), std::min(size, hello.size()), hello.begin());
  ATHANOR_ASSERT(!check_hello(secret, challenge, hello));
  (void)answer_challenge(secret, challenge, {0, 1, 2}, {});

  try {
    ATHANOR_ASSERT(parse_host_address(text).rank >= 0);
  } catch (const Error& error) {
    ATHANOR_ASSERT(error.kind() == ErrorKind::user);
  }
  return 0;
}
