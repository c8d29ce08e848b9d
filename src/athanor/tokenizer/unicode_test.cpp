#include "athanor/tokenizer/unicode.h"

#include <gtest/gtest.h>

#include <string>

namespace athanor {
namespace {

TEST(Unicode, Classes) {
  using enum CharacterClass;
  // Taken by hand from UnicodeData.txt and PropList.txt, at the edges of ranges.
  for (const uint32_t code : {0x41U, 0x7aU, 0xaaU, 0xb5U, 0xc0U, 0xd6U, 0x17fU, 0x2b0U, 0x3400U, 0x4dbfU,
                              0x4e00U, 0x9fffU, 0xac00U, 0xd7a3U, 0x20000U, 0x2a6dfU, 0x31350U, 0x323afU}) {
    EXPECT_EQ(class_of(code), letter) << code;
  }
  for (const uint32_t code : {0x30U, 0x39U, 0xb2U, 0xbcU, 0x660U, 0x2160U, 0x3007U, 0x1d7ffU}) {
    EXPECT_EQ(class_of(code), number) << code;
  }
  for (const uint32_t code : {0x9U, 0xdU, 0x20U, 0x85U, 0xa0U, 0x1680U, 0x2000U, 0x200aU, 0x2028U, 0x2029U,
                              0x202fU, 0x205fU, 0x3000U}) {
    EXPECT_EQ(class_of(code), space) << code;
  }
  for (const uint32_t code :
       {0x0U, 0x8U, 0x1cU, 0x7fU, 0xd7U, 0x301U, 0x180eU, 0x200bU, 0x4dc0U, 0xd7a4U, 0xd800U, 0xfeffU,
        0x1f469U, 0x2a6e0U, 0x3ffffU, 0x40000U, 0x10ffffU, 0xffffffffU}) {
    EXPECT_EQ(class_of(code), other) << code;
  }
}

TEST(Unicode, EveryCodePointIsReadBack) {
  for (uint32_t code = 0; code < 0x110000; ++code) {
    if (code >= 0xd800 && code < 0xe000) continue;
    std::string text = "x";
    append_utf8(text, code);
    const Character character = character_at(text, 1);
    ASSERT_TRUE(character.valid && character.code == code && character.length == text.size() - 1) << code;
    ASSERT_EQ(incomplete_tail(text), 0U);
    for (size_t cut = 1; cut < character.length; ++cut) {
      const std::string_view part = std::string_view(text).substr(0, 1 + cut);
      ASSERT_FALSE(character_at(part, 1).valid);
      ASSERT_EQ(incomplete_tail(part), cut);
    }
  }
}

TEST(Unicode, IllFormedSequencesAreSingleBytes) {
  for (const char* text : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                           "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xe2\x28\xa1"}) {
    const Character character = character_at(text, 0);
    EXPECT_FALSE(character.valid);
    EXPECT_EQ(character.length, 1);
    EXPECT_EQ(incomplete_tail(text), 0U);
  }
}

}  // namespace
}  // namespace athanor
