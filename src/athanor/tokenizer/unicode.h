// UTF-8 and the character classes that the splitting patterns of tokenizers are written in.
//
// Called by the room. Thread safety: pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "athanor/tokenizer/unicode_table.h"

namespace athanor {

enum class CharacterClass : uint8_t {
  other = 0,
  letter = 1,  // \p{L}: general category L*
  number = 2,  // \p{N}: general category N*
  space = 3,   // \s: the property White_Space
};

inline CharacterClass class_of(uint32_t code) {
  if (code >= unicode_table::limit) return CharacterClass::other;
  const uint32_t byte = unicode_table::classes[unicode_table::block_of[code / 256] * 64U + code % 256 / 4];
  return static_cast<CharacterClass>(byte >> (code % 4 * 2) & 3);
}

struct Character {
  uint32_t code = 0;   // of an invalid byte: 0xFFFD
  uint8_t length = 1;  // bytes
  bool valid = false;
};

// The character that begins at `position` < text.size(). A byte that begins no well-formed sequence (The
// Unicode Standard, table 3-7: nothing overlong, no surrogates, nothing above U+10FFFF) is one character of
// its own, one byte long and not valid.
Character character_at(std::string_view text, size_t position);

// How many bytes at the end of `text` begin a sequence that further bytes may complete: 0 to 3.
size_t incomplete_tail(std::string_view text);

void append_utf8(std::string& text, uint32_t code);

}  // namespace athanor
