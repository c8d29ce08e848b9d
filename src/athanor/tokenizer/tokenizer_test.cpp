#include "athanor/tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/tokenizer/tokenizer_test_support.h"
#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

using Ids = std::vector<int32_t>;

TEST(Tokenizer, Gpt2GivesThePublishedIds) {
  const auto tokenizer = gpt2_tokenizer();
  EXPECT_EQ(tokenizer->vocabulary_size(), 50257);
  EXPECT_EQ(tokenizer->end_of_text(), 50256);
  const auto vectors =
      nlohmann::json::parse(read_file(system_files(), test_data("gpt2/vectors.json"), 1 << 20));
  ASSERT_GE(vectors.size(), 15U);
  for (const auto& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    EXPECT_EQ(tokenizer->encode(text), vector["ids"].get<Ids>()) << text;
    EXPECT_EQ(tokenizer->decode(vector["ids"].get<Ids>()), text);
  }
}

TEST(Tokenizer, BytesHasTheValuesOfBytesAsIds) {
  const auto tokenizer = open_tokenizer(system_files(), "bytes");
  EXPECT_EQ(tokenizer->vocabulary_size(), 257);
  EXPECT_EQ(tokenizer->end_of_text(), 256);
  EXPECT_EQ(tokenizer->encode(std::string("a\0\xff ", 4)), (Ids{97, 0, 255, 32}));
  EXPECT_EQ(tokenizer->decode(Ids{97, 0, 255, 32}), std::string("a\0\xff ", 4));
  EXPECT_EQ(tokenizer->decode(Ids{97, 256, 98}, {.special_tokens = false}), "ab");
}

TEST(Tokenizer, P123_TextThatSpellsASpecialTokenIsPlainUnlessAsked) {
  const auto tokenizer = gpt2_tokenizer();
  const std::string text = "a<|endoftext|>b";
  const Ids plain = tokenizer->encode(text);
  for (const int32_t id : plain) EXPECT_FALSE(tokenizer->is_special(id));
  EXPECT_EQ(tokenizer->decode(plain), text);
  EXPECT_EQ(tokenizer->encode(text, {.special_tokens = true}), (Ids{64, 50256, 65}));
}

TEST(Tokenizer, P121_IncrementalDecodingKeepsCharactersWhole) {
  const auto tokenizer =
      std::make_shared<const Tokenizer>(byte_definition({{"\xcf", "\x86"}, {"\x88", "\x80"}}));
  const auto check = [&](const std::string& text, bool valid) {
    const Ids ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    IncrementalDecoder decoder(tokenizer);
    std::string joined;
    for (const int32_t id : ids) {
      const std::string piece = decoder.append(id);
      EXPECT_TRUE(!valid || incomplete_tail(piece) == 0);
      joined += piece;
    }
    joined += decoder.finish();
    EXPECT_EQ(joined, text);
  };
  check("\xcf\x86 \xe2\x88\x80x \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 e\xcc\x81\n", true);
  check("", true);
  check("\xff\xe2\x88 \xf0\x9f\x91", false);
  check(random_bytes(5, 400), false);
  // A whole character comes out with its last byte, not later.
  IncrementalDecoder decoder(tokenizer);
  const Ids ids = tokenizer->encode("\xf0\x9f\x91\xa9");
  ASSERT_EQ(ids.size(), 4U);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(decoder.append(ids[i]), "");
  EXPECT_EQ(decoder.append(ids[3]), "\xf0\x9f\x91\xa9");
}

TEST(Tokenizer, RoundTripOfEveryCodePointAndOfRandomBytes) {
  const auto tokenizer = gpt2_tokenizer();
  std::string text;
  for (uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 7) {
    if (code < 0xd800 || code >= 0xe000) append_utf8(text, code);
    if (code % 64 == 0) text += ' ';
  }
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const std::string bytes = random_bytes(seed, 200);
    ASSERT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes) << seed;
  }
}

TEST(Tokenizer, PiecesGiveTheIdsOfTheWhole) {
  const auto tokenizer = gpt2_tokenizer();
  for (const bool special : {false, true}) {
    for (uint64_t seed = 0; seed < 30; ++seed) {
      std::string text = random_bytes(seed, 300);
      text.insert(text.size() / 2, "x<|endoftext|>\n <|endoftext|");
      const Ids whole = tokenizer->encode(text, {.special_tokens = special});
      Ids ids;
      std::string held;
      bool continuation = false;
      for (size_t begin = 0; begin < text.size(); begin += 50) {
        held += text.substr(begin, 50);
        const size_t cut = tokenizer->last_safe_cut(held, {.special_tokens = special});
        tokenizer->encode(held.substr(0, cut), ids, {special, continuation});
        continuation = continuation || cut > 0;
        held.erase(0, cut);
      }
      EXPECT_TRUE(continuation);
      tokenizer->encode(held, ids, {special, continuation});
      ASSERT_EQ(ids, whole) << seed;
    }
  }
}

TEST(Tokenizer, UnknownIdsAreRefused) {
  const auto tokenizer = open_tokenizer(system_files(), "bytes");
  EXPECT_THROW(tokenizer->decode(Ids{257}), Error);
  EXPECT_THROW(tokenizer->decode(Ids{-1}), Error);
  EXPECT_FALSE(tokenizer->is_special(1 << 30));
}

TEST(Tokenizer, SavedAndOpenedItIsTheSame) {
  MemoryFileEnvironment files;
  const auto check = [&](const Tokenizer& tokenizer) {
    tokenizer.save(files, "tokenizer.json");
    const auto opened = open_tokenizer(files, "tokenizer.json");
    EXPECT_EQ(opened->identity(), tokenizer.identity());
    EXPECT_EQ(opened->vocabulary_size(), tokenizer.vocabulary_size());
    EXPECT_EQ(opened->end_of_text(), tokenizer.end_of_text());
    EXPECT_EQ(opened->encode("It's a  test\n"), tokenizer.encode("It's a  test\n"));
    return opened;
  };
  check(*gpt2_tokenizer());
  check(*open_tokenizer(files, "bytes"));
  TokenizerDefinition definition = byte_definition({{" ", "a"}, {"\xcf", "\x86"}}, SplitPattern::llama3);
  definition.whole_words_first = true;
  definition.added_tokens.push_back(
      {.id = 300, .content = "\"\\\n\xc3\xa9", .special = false, .normalized = true});
  definition.added_tokens.push_back({.id = 301, .content = "<begin>", .right_strip = true});
  definition.beginning_of_text = 301;
  const Tokenizer tokenizer(definition);
  EXPECT_EQ(check(tokenizer)->beginning_of_text(), 301);
  // What decides ids decides the identity.
  definition.whole_words_first = false;
  EXPECT_NE(Tokenizer(definition).identity(), tokenizer.identity());
}

}  // namespace
}  // namespace athanor
