#include "athanor/base/crc32c.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace athanor {
namespace {

// The polynomial, bit by bit.
uint32_t slow_crc32c(std::string_view text) {
  uint32_t state = 0xffffffffU;
  for (const char character : text) {
    state ^= static_cast<uint8_t>(character);
    for (int bit = 0; bit < 8; ++bit) state = (state >> 1) ^ ((state & 1U) != 0 ? 0x82f63b78U : 0U);
  }
  return ~state;
}

std::string varied_text(size_t size) {
  std::string text(size, '\0');
  uint32_t word = 12345;
  for (auto& character : text) {
    word = word * 1664525U + 1013904223U;
    character = static_cast<char>(word >> 24);
  }
  return text;
}

TEST(Crc32c, PublishedVectors) {
  EXPECT_EQ(crc32c(""), 0U);
  EXPECT_EQ(crc32c("123456789"), 0xe3069283U);
  // RFC 3720, appendix B.4, read as a little-endian word.
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aaU);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43U);
  std::string rising(32, '\0');
  for (size_t i = 0; i < rising.size(); ++i) rising[i] = static_cast<char>(i);
  EXPECT_EQ(crc32c(rising), 0x46dd794eU);
}

TEST(Crc32c, EqualsTheDefinitionAtAllSmallSizesAndAlignments) {
  const std::string text = varied_text(700);
  for (size_t offset = 0; offset < 9; ++offset) {
    for (size_t size : {0U, 1U, 2U, 3U, 7U, 8U, 15U, 16U, 17U, 63U, 64U, 65U, 127U, 255U, 256U, 511U, 690U}) {
      const auto piece = std::string_view(text).substr(offset, size);
      EXPECT_EQ(crc32c(piece), slow_crc32c(piece)) << offset << " " << size;
    }
  }
}

TEST(Crc32c, PiecesEqualTheWhole) {
  const std::string text = varied_text(100'000);
  for (size_t piece : {1U, 7U, 64U, 4096U, 99'999U}) {
    Crc32c checksum;
    for (size_t i = 0; i < text.size(); i += piece) checksum.update(std::string_view(text).substr(i, piece));
    EXPECT_EQ(checksum.value(), crc32c(text)) << piece;
  }
}

TEST(Crc32c, EveryFlippedBitShows) {
  std::string text = varied_text(300);
  const uint32_t right = crc32c(text);
  for (size_t bit = 0; bit < text.size() * 8; ++bit) {
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_NE(crc32c(text), right);
    text[bit / 8] = static_cast<char>(text[bit / 8] ^ (1 << (bit % 8)));
  }
}

}  // namespace
}  // namespace athanor
