#include "athanor/tokenizer/open_tokenizer.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/tokenizer/tokenizer_test_support.h"

namespace athanor {
namespace {

using Ids = std::vector<int32_t>;
using Json = nlohmann::json;

constexpr const char* fixture_names[] = {"llama3_small",      "gpt2_strips",   "llama2_small",
                                         "llama2_normalized", "mistral_small", "metaspace_words"};

std::string fixture(const std::string& name) {
  return test_data("tokenizers/" + name + ".json");
}

void expect_fixture_ids(const Tokenizer& tokenizer, const std::string& name) {
  const Json vectors = Json::parse(read_file(system_files(), fixture(name + ".vectors"), 1 << 20));
  ASSERT_GE(vectors.size(), 30U);
  for (const Json& vector : vectors) {
    const auto text = vector["text"].get<std::string>();
    EXPECT_EQ(tokenizer.encode(text), vector["ids"].get<Ids>()) << name << ": " << text;
    EXPECT_EQ(tokenizer.encode(text, {.special_tokens = true}), vector["special_ids"].get<Ids>())
        << name << ": " << text;
    EXPECT_EQ(tokenizer.decode(vector["ids"].get<Ids>()), vector["decoded"].get<std::string>()) << name;
    EXPECT_EQ(tokenizer.decode(vector["special_ids"].get<Ids>()),
              vector["special_decoded"].get<std::string>())
        << name;
  }
}

TEST(OpenTokenizer, FilesGiveTheIdsOfTheLibraryThatMadeThem) {
  for (const char* name : fixture_names)
    expect_fixture_ids(*open_tokenizer(system_files(), fixture(name)), name);
}

TEST(OpenTokenizer, AndDoSoWhenWrittenAgain) {
  MemoryFileEnvironment files;
  for (const char* name : fixture_names) {
    const auto tokenizer = open_tokenizer(system_files(), fixture(name));
    tokenizer->save(files, "tokenizer.json");
    const auto again = open_tokenizer(files, "tokenizer.json");
    EXPECT_EQ(again->identity(), tokenizer->identity()) << name;
    EXPECT_EQ(again->beginning_of_text(), tokenizer->beginning_of_text()) << name;
    expect_fixture_ids(*again, name);
  }
}

// Files name tokenizers by it, so it stays what docs/formats/tokenizer.md says, from which these were
// computed.
TEST(OpenTokenizer, IdentitiesAreThoseOfTheFormat) {
  EXPECT_EQ(open_tokenizer(system_files(), "bytes")->identity(), 0xa1187e1dU);
  EXPECT_EQ(open_tokenizer(system_files(), test_data("gpt2"))->identity(), 0xb5f379f3U);
}

TEST(OpenTokenizer, P122_CharactersWithoutTokenBecomeBytes) {
  for (const char* name : {"llama2_small", "mistral_small", "llama3_small"}) {
    const auto tokenizer = open_tokenizer(system_files(), fixture(name));
    const std::string text = "rare \xe9\xbe\x98 and \x07.";
    const Ids ids = tokenizer->encode(text);
    EXPECT_EQ(tokenizer->decode(ids), text);
    const auto fallback =
        std::count_if(ids.begin(), ids.end(), [&](int32_t id) { return tokenizer->is_byte_fallback(id); });
    EXPECT_EQ(fallback, std::string(name) == "llama3_small" ? 3 : 4)
        << name;  // there a control byte is a token like any
  }
  // Without tokens for them it would lose text, and is refused.
  for (const char* name : {"llama2_small", "llama3_small"}) {
    MemoryFileEnvironment files;
    Json file = Json::parse(read_file(system_files(), fixture(name), 1 << 20));
    file["model"]["vocab"].erase(std::string(name) == "llama2_small" ? "<0x9F>" : "\xc2\xbe");
    write_file_atomically(files, "t.json", file.dump());
    EXPECT_THROW(open_tokenizer(files, "t.json"), Error);
    file = Json::parse(read_file(system_files(), fixture("llama2_small"), 1 << 20));
    file["model"]["byte_fallback"] = false;
    write_file_atomically(files, "t.json", file.dump());
    EXPECT_THROW(open_tokenizer(files, "t.json"), Error);
  }
}

TEST(OpenTokenizer, RoundTripOfRandomBytesInEveryForm) {
  for (const char* name : {"llama3_small", "llama2_small"}) {
    const auto tokenizer = open_tokenizer(system_files(), fixture(name));
    for (uint64_t seed = 0; seed < 40; ++seed) {
      const std::string text = random_bytes(seed, 150);
      ASSERT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << name << " " << seed;
    }
  }
}

TEST(OpenTokenizer, PiecesGiveTheIdsOfTheWholeInEveryForm) {
  for (const char* name : fixture_names) {
    const auto tokenizer = open_tokenizer(system_files(), fixture(name));
    for (const bool special : {false, true}) {
      std::string text;
      for (const Json& vector :
           Json::parse(read_file(system_files(), fixture(std::string(name) + ".vectors"), 1 << 20))) {
        text += vector["text"].get<std::string>() + " ";
      }
      const Ids whole = tokenizer->encode(text, {.special_tokens = special});
      int64_t cuts = 0;
      for (size_t known = 1; known < text.size(); known += 13) {
        const size_t cut =
            tokenizer->last_safe_cut(std::string_view(text).substr(0, known), {.special_tokens = special});
        if (cut == 0) continue;
        ++cuts;
        Ids ids = tokenizer->encode(text.substr(0, cut), {.special_tokens = special});
        tokenizer->encode(text.substr(cut), ids, {.special_tokens = special, .continuation = true});
        ASSERT_EQ(ids, whole) << name << ", cut at " << cut << " of " << known;
      }
      const bool uncuttable = special && std::string(name) == "llama2_normalized";
      EXPECT_EQ(cuts > 50, !uncuttable) << name;
    }
  }
}

TEST(OpenTokenizer, IncrementalDecodingInEveryForm) {
  for (const char* name : fixture_names) {
    const std::shared_ptr<const Tokenizer> tokenizer = open_tokenizer(system_files(), fixture(name));
    for (const bool special : {false, true}) {
      Ids ids = tokenizer->encode("  where \xf0\x9f\x91\xa9 was <s>it</s>", {.special_tokens = special});
      if (tokenizer->end_of_text()) ids.insert(ids.begin(), *tokenizer->end_of_text());
      IncrementalDecoder decoder(tokenizer, {.special_tokens = special});
      std::string joined;
      for (const int32_t id : ids) joined += decoder.append(id);
      joined += decoder.finish();
      EXPECT_EQ(joined, tokenizer->decode(ids, {.special_tokens = special})) << name;
    }
  }
}

TEST(OpenTokenizer, RolesOfSpecialTokens) {
  const auto llama3 = open_tokenizer(system_files(), fixture("llama3_small"));
  EXPECT_EQ(llama3->beginning_of_text(), 502);
  EXPECT_EQ(llama3->end_of_text(), 503);
  const auto llama2 = open_tokenizer(system_files(), fixture("llama2_small"));
  EXPECT_EQ(llama2->beginning_of_text(), 1);
  EXPECT_EQ(llama2->end_of_text(), 2);
  // tokenizer_config.json beside it comes first, and saving keeps what it said.
  MemoryFileEnvironment files;
  files.make_directories("model");
  write_file_atomically(files, "model/tokenizer.json",
                        read_file(system_files(), fixture("llama2_small"), 1 << 20));
  write_file_atomically(files, "model/tokenizer_config.json",
                        R"({"eos_token": {"content": "<unk>"}, "bos_token": null})");
  const auto named = open_tokenizer(files, "model");
  EXPECT_EQ(named->beginning_of_text(), 1);
  EXPECT_EQ(named->end_of_text(), 0);
  named->save(files, "copy.json");
  EXPECT_EQ(open_tokenizer(files, "copy.json")->end_of_text(), 0);
  write_file_atomically(files, "model/tokenizer_config.json", R"({"eos_token": "<none>"})");
  EXPECT_THROW(open_tokenizer(files, "model"), Error);
}

std::string refusal(MemoryFileEnvironment& files, const std::string& path) {
  try {
    open_tokenizer(files, path);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(OpenTokenizer, MergesThatAreCutShortAreRefused) {
  const std::string folder = test_data("gpt2/");
  MemoryFileEnvironment files;
  write_file_atomically(files, "vocab.json", read_file(system_files(), folder + "vocab.json", 1 << 24));
  const std::string merges = read_file(system_files(), folder + "merges.txt", 1 << 24);
  const auto refused = [&](size_t size) {
    write_file_atomically(files, "merges.txt", merges.substr(0, size));
    return refusal(files, "vocab.json");
  };
  EXPECT_EQ(refused(merges.size()), "");
  EXPECT_NE(refused(0).find("49999 of its 50257 tokens"), std::string::npos) << refused(0);
  const size_t last_line = merges.rfind('\n', merges.size() - 2);
  EXPECT_NE(refused(last_line + 1).find("1 of its 50257 tokens"), std::string::npos)
      << refused(last_line + 1);
  EXPECT_NE(refused(merges.size() / 2), "");
}

TEST(OpenTokenizer, ATokenizerJsonMayHaveAnyName) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "my-vocab.json", read_file(system_files(), fixture("llama3_small"), 1 << 20));
  EXPECT_EQ(open_tokenizer(files, "my-vocab.json")->identity(),
            open_tokenizer(system_files(), fixture("llama3_small"))->identity());
}

TEST(OpenTokenizer, WhatIsNotThereIsNamed) {
  MemoryFileEnvironment files;
  files.make_directories("empty");
  write_file_atomically(files, "vocab.json", R"({"a": 0})");
  for (const char* path : {"absent.json", "empty", "vocab.json", ""}) {
    EXPECT_THROW(open_tokenizer(files, path), Error) << path;
  }
}

}  // namespace
}  // namespace athanor
