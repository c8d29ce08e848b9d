// CRC-32C (Castagnoli, polynomial 0x1EDC6F41; the one of iSCSI, RFC 3720): the checksum of every file
// and message of ours. Detects every error burst up to 32 bits; not for adversaries.
//
// Called by data, checkpoint and whoever writes blocks. Thread safety: pure functions and values.
// Source: ISA-L, which uses the processor's carry-less multiplication where it has one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace athanor {

// The checksum of a stream of pieces: `Crc32c c; c.update(a); c.update(b); c.value()` equals
// `crc32c(a followed by b)`. No pieces give 0.
class Crc32c {
 public:
  void update(std::span<const std::byte> bytes);
  void update(std::string_view text) { update(std::as_bytes(std::span(text))); }
  uint32_t value() const { return ~state_; }

 private:
  uint32_t state_ = 0xffffffffU;
};

uint32_t crc32c(std::span<const std::byte> bytes);
inline uint32_t crc32c(std::string_view text) {
  return crc32c(std::as_bytes(std::span(text)));
}

}  // namespace athanor
