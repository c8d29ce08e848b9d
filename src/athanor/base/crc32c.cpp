#include "athanor/base/crc32c.h"

#include <isa-l/crc.h>

#include <algorithm>

namespace athanor {

void Crc32c::update(std::span<const std::byte> bytes) {
  // ISA-L neither inverts the initial value nor the result, and its length is an int.
  constexpr size_t longest = size_t{1} << 30;
  while (!bytes.empty()) {
    const auto piece = bytes.first(std::min(bytes.size(), longest));
    // Its signature lacks a const; it only reads.
    auto* data = reinterpret_cast<unsigned char*>(const_cast<std::byte*>(piece.data()));
    state_ = crc32_iscsi(data, static_cast<int>(piece.size()), state_);
    bytes = bytes.subspan(piece.size());
  }
}

uint32_t crc32c(std::span<const std::byte> bytes) {
  Crc32c checksum;
  checksum.update(bytes);
  return checksum.value();
}

}  // namespace athanor
