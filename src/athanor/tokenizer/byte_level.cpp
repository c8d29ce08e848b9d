#include "athanor/tokenizer/byte_level.h"

#include <array>
#include <cstdint>

#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

constexpr size_t alphabet_end = 256 + 68;

// Printable bytes of Latin-1 stand for themselves, the 68 others for U+0100 and what follows, in rising
// order.
constexpr std::array<uint16_t, 256> make_alphabet() {
  std::array<uint16_t, 256> alphabet{};
  uint16_t next = 256;
  for (uint16_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    alphabet[byte] = printable ? byte : next++;
  }
  return alphabet;
}

constexpr std::array<uint16_t, 256> alphabet = make_alphabet();

constexpr std::array<int16_t, alphabet_end> make_bytes() {
  std::array<int16_t, alphabet_end> bytes{};
  for (int16_t& byte : bytes) byte = -1;
  for (int16_t byte = 0; byte < 256; ++byte) bytes[alphabet[static_cast<size_t>(byte)]] = byte;
  return bytes;
}

constexpr std::array<int16_t, alphabet_end> bytes_of = make_bytes();

}  // namespace

std::string to_byte_alphabet(std::string_view bytes) {
  std::string text;
  text.reserve(2 * bytes.size());
  for (const char byte : bytes) append_utf8(text, alphabet[static_cast<uint8_t>(byte)]);
  return text;
}

std::optional<std::string> from_byte_alphabet(std::string_view text) {
  std::string bytes;
  for (size_t i = 0; i < text.size();) {
    const Character character = character_at(text, i);
    if (!character.valid || character.code >= alphabet_end || bytes_of[character.code] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(bytes_of[character.code]));
    i += character.length;
  }
  return bytes;
}

}  // namespace athanor
