// The generated table behind `class_of` (unicode.h); nobody else includes it.
#pragma once

#include <array>
#include <cstdint>

namespace athanor::unicode_table {

inline constexpr uint32_t limit = 0x40000;  // code points from here on are of no class

extern const std::array<uint8_t, limit / 256> block_of;  // by code point / 256
extern const uint8_t classes[];                          // 64 bytes a block, 2 bits a code point

}  // namespace athanor::unicode_table
