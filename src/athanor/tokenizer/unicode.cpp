#include "athanor/tokenizer/unicode.h"

#include <algorithm>

namespace athanor {
namespace {

struct Sequence {
  size_t length = 0;  // 0: the byte begins no sequence
  uint8_t second_low = 0x80, second_high = 0xbf;
};

Sequence sequence_of(uint8_t lead) {
  if (lead < 0x80) return {1};
  if (lead < 0xc2) return {0};
  if (lead < 0xe0) return {2};
  if (lead == 0xe0) return {3, 0xa0, 0xbf};
  if (lead == 0xed) return {3, 0x80, 0x9f};
  if (lead < 0xf0) return {3};
  if (lead == 0xf0) return {4, 0x90, 0xbf};
  if (lead < 0xf4) return {4};
  if (lead == 0xf4) return {4, 0x80, 0x8f};
  return {0};
}

// How many bytes of `text` at `position` fit the sequence.
size_t matching_bytes(const Sequence& sequence, std::string_view text, size_t position) {
  const size_t last = std::min(sequence.length, text.size() - position);
  size_t n = std::min<size_t>(1, last);
  for (; n < last; ++n) {
    const auto byte = static_cast<uint8_t>(text[position + n]);
    const uint8_t low = n == 1 ? sequence.second_low : 0x80, high = n == 1 ? sequence.second_high : 0xbf;
    if (byte < low || byte > high) break;
  }
  return n;
}

}  // namespace

Character character_at(std::string_view text, size_t position) {
  const auto lead = static_cast<uint8_t>(text[position]);
  if (lead < 0x80) return {lead, 1, true};
  const Sequence sequence = sequence_of(lead);
  if (sequence.length == 0 || matching_bytes(sequence, text, position) != sequence.length) {
    return {0xfffd, 1, false};
  }
  uint32_t code = lead & (0x7fU >> sequence.length);
  for (size_t i = 1; i < sequence.length; ++i) {
    code = code << 6 | (static_cast<uint8_t>(text[position + i]) & 0x3fU);
  }
  return {code, static_cast<uint8_t>(sequence.length), true};
}

size_t incomplete_tail(std::string_view text) {
  for (size_t n = 1; n <= std::min<size_t>(3, text.size()); ++n) {
    const size_t position = text.size() - n;
    const Sequence sequence = sequence_of(static_cast<uint8_t>(text[position]));
    if (sequence.length > n && matching_bytes(sequence, text, position) == n) return n;
    if (sequence.length != 0) return 0;
  }
  return 0;
}

void append_utf8(std::string& text, uint32_t code) {
  const auto add = [&](uint32_t byte) { text.push_back(static_cast<char>(byte)); };
  if (code < 0x80) return add(code);
  if (code < 0x800) {
    add(0xc0 | code >> 6);
  } else {
    if (code < 0x10000) {
      add(0xe0 | code >> 12);
    } else {
      add(0xf0 | code >> 18);
      add(0x80 | (code >> 12 & 0x3f));
    }
    add(0x80 | (code >> 6 & 0x3f));
  }
  add(0x80 | (code & 0x3f));
}

}  // namespace athanor
