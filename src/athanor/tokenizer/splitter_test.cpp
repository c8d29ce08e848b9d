#include "athanor/tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "athanor/base/philox.h"

namespace athanor {
namespace {

using Words = std::vector<std::string>;

Words words_of(SplitPattern pattern, std::string_view text) {
  Words words;
  for_each_word(pattern, text, [&](std::string_view word) { words.emplace_back(word); });
  return words;
}

TEST(Splitter, Gpt2Words) {
  const auto split = [](std::string_view text) { return words_of(SplitPattern::gpt2, text); };
  EXPECT_EQ(split(""), Words{});
  EXPECT_EQ(split("Hello, world! It's 2026."),
            (Words{"Hello", ",", " world", "!", " It", "'s", " 2026", "."}));
  EXPECT_EQ(split("we'VE we've 'tis 'ret"), (Words{"we", "'", "VE", " we", "'ve", " '", "tis", " '", "ret"}));
  EXPECT_EQ(split("'tis 're'llx"), (Words{"'t", "is", " '", "re", "'ll", "x"}));
  EXPECT_EQ(split("a  b\t\tc \n"), (Words{"a", " ", " b", "\t", "\t", "c", " \n"}));
  EXPECT_EQ(split("   "), Words{"   "});
  EXPECT_EQ(split("\n\nx"), (Words{"\n", "\n", "x"}));
  EXPECT_EQ(split("x\xe3\x80\x80\xe3\x80\x80y"), (Words{"x", "\xe3\x80\x80", "\xe3\x80\x80", "y"}));
  EXPECT_EQ(split("caf\xc3\xa9s \xd9\xa1\xd9\xa2"), (Words{"caf\xc3\xa9s", " \xd9\xa1\xd9\xa2"}));
  EXPECT_EQ(split("e\xcc\x81"
                  "a"),
            (Words{"e", "\xcc\x81", "a"}));  // a combining mark is no letter
  EXPECT_EQ(split("12345 6"), (Words{"12345", " 6"}));
}

TEST(Splitter, Llama3Words) {
  const auto split = [](std::string_view text) { return words_of(SplitPattern::llama3, text); };
  EXPECT_EQ(split("Hello, world! It'S 2026."),
            (Words{"Hello", ",", " world", "!", " It", "'S", " ", "202", "6", "."}));
  EXPECT_EQ(split("\tx (y\n\n  z"), (Words{"\tx", " (", "y", "\n\n", " ", " z"}));
  EXPECT_EQ(split("end.\r\n\r\nNext"), (Words{"end", ".\r\n\r\n", "Next"}));
  EXPECT_EQ(split(" \n \n  a"), (Words{" \n \n", " ", " a"}));
  EXPECT_EQ(split("a \n  "), (Words{"a", " \n", "  "}));
  EXPECT_EQ(split("'\xc5\xbfx"), (Words{"'\xc5\xbf", "x"}));
  EXPECT_EQ(split("\xe2\x80\x9cquote"), Words{"\xe2\x80\x9cquote"});
}

TEST(Splitter, BytesThatAreNoCharacterAreKept) {
  EXPECT_EQ(words_of(SplitPattern::gpt2, "a\xff\xfe b\xc3"), (Words{"a", "\xff\xfe", " b", "\xc3"}));
  EXPECT_EQ(words_of(SplitPattern::llama3, "\xed\xa0\x80z"), (Words{"\xed\xa0\x80", "z"}));  // a surrogate
  EXPECT_EQ(words_of(SplitPattern::none, "a\xff b"), Words{"a\xff b"});
}

// Texts in which every kind of character meets every other, whole, cut or invalid.
std::string random_text(uint64_t seed, size_t pieces) {
  static const Words alphabet{"a",
                              "S",
                              "t",
                              "l",
                              "'",
                              "'s",
                              "'LL",
                              "1",
                              "7",
                              " ",
                              "  ",
                              "\n",
                              "\r",
                              "\t",
                              "!",
                              "-",
                              "\xc3\xa9",
                              "\xcc\x81",
                              "\xe6\x97\xa5",
                              "\xe3\x80\x80",
                              "\xc2\xa0",
                              "\xd9\xa1",
                              "\xf0\x9f\x91\xa9",
                              "\xe2\x80\x8d",
                              "\xff",
                              "\xc3",
                              "\xa9",
                              "\xf0\x9f",
                              "\xc5\xbf"};
  std::string text;
  for (size_t i = 0; i < pieces; ++i) text += alphabet[mix64(seed * pieces + i + 1) % alphabet.size()];
  return text;
}

TEST(Splitter, SafeCutsHoldWhateverFollows) {
  int64_t cuts = 0;
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3}) {
    for (uint64_t seed = 0; seed < 2000; ++seed) {
      const std::string text = random_text(seed, 12);
      const Words whole = words_of(pattern, text);
      std::string joined;
      for (const std::string& word : whole) joined += word;
      ASSERT_EQ(joined, text);
      for (size_t known = 1; known <= text.size(); ++known) {
        const std::string_view beginning = std::string_view(text).substr(0, known);
        const size_t cut = last_safe_cut(pattern, beginning);
        if (cut == 0) continue;
        ++cuts;
        Words parts = words_of(pattern, std::string_view(text).substr(0, cut));
        for (std::string& word : words_of(pattern, std::string_view(text).substr(cut))) {
          parts.push_back(std::move(word));
        }
        ASSERT_EQ(parts, whole) << "cut at " << cut << " of " << known << " known bytes, seed " << seed;
      }
    }
  }
  EXPECT_GT(cuts, 20000);
}

TEST(Splitter, CutsOrdinaryTextNearItsEnd) {
  for (const SplitPattern pattern : {SplitPattern::gpt2, SplitPattern::llama3}) {
    EXPECT_EQ(last_safe_cut(pattern, "In the beginning God"), 16U);
    EXPECT_EQ(last_safe_cut(pattern, "beginning"), 0U);
    EXPECT_EQ(last_safe_cut(pattern, ""), 0U);
  }
  EXPECT_EQ(last_safe_cut(SplitPattern::none, "In the beginning"), 0U);
}

}  // namespace
}  // namespace athanor
