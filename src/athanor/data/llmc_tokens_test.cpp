#include "athanor/data/llmc_tokens.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "athanor/base/error_test_support.h"
#include "athanor/base/memory_file_environment.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

template <class T>
std::string file_of(int32_t magic, int32_t version, int32_t count, const std::vector<T>& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = count;
  std::string bytes(reinterpret_cast<const char*>(header.data()), 1024);
  bytes.append(reinterpret_cast<const char*>(tokens.data()), tokens.size() * sizeof(T));
  return bytes;
}

std::shared_ptr<const LlmcTokens> open(const std::string& bytes, int64_t vocabulary = 1 << 30) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "x.bin", bytes);
  return LlmcTokens::open(files, "x.bin", vocabulary);
}

std::vector<int32_t> all_of(const TokenSource& source) {
  std::vector<int32_t> ids(static_cast<size_t>(source.token_count()));
  source.read(0, ids);
  return ids;
}

TEST(LlmcTokens, BothWidths) {
  const auto narrow = open(file_of<uint16_t>(20240520, 1, 3, {50256, 1, 65535}));
  EXPECT_THAT(all_of(*narrow), ElementsAre(50256, 1, 65535));
  EXPECT_EQ(narrow->vocabulary_size(), 65'536);
  EXPECT_EQ(narrow->document_count(), 1);
  EXPECT_EQ(narrow->document_at(2).end, 3);
  const auto wide = open(file_of<uint32_t>(20240801, 7, 2, {128000, 5}), 128'256);
  EXPECT_THAT(all_of(*wide), ElementsAre(128000, 5));
  EXPECT_EQ(wide->vocabulary_size(), 128'256);
  EXPECT_NE(wide->identity(), narrow->identity());
  const auto empty = open(file_of<uint16_t>(20240520, 1, 0, {}));
  EXPECT_EQ(empty->token_count(), 0);
  EXPECT_EQ(empty->document_count(), 0);
}

TEST(LlmcTokens, ShardsMakeOneStream) {
  const TokenStream stream({open(file_of<uint16_t>(20240520, 1, 2, {1, 2})),
                            open(file_of<uint16_t>(20240520, 1, 0, {})),
                            open(file_of<uint16_t>(20240520, 1, 3, {3, 4, 5}))});
  EXPECT_THAT(all_of(stream), ElementsAre(1, 2, 3, 4, 5));
  EXPECT_EQ(stream.document_count(), 2);
  EXPECT_EQ(stream.document(1).begin, 2);
}

TEST(LlmcTokens, DamageIsNamed) {
  const std::string whole = file_of<uint16_t>(20240520, 1, 2, {1, 2});
  EXPECT_THAT(error_of([&] { open(whole.substr(0, 1023)); }), HasSubstr("1023 bytes"));
  EXPECT_THAT(error_of([&] { open(whole.substr(0, 1027)); }), HasSubstr("has 3 bytes for them"));
  EXPECT_THAT(error_of([&] { open(whole + "x"); }), HasSubstr("has 5 bytes for them"));
  EXPECT_THAT(error_of([] { open(file_of<uint16_t>(20240520, 2, 0, {})); }), HasSubstr("version 2"));
  EXPECT_THAT(error_of([] { open(file_of<uint16_t>(20240520, 1, -1, {1})); }), HasSubstr("-1 tokens"));
  EXPECT_THAT(error_of([] { open(file_of<uint16_t>(20240520, 1, 2147483647, {1})); }),
              HasSubstr("2147483647 tokens"));
  EXPECT_THAT(error_of([] { open(file_of<uint16_t>(20240326, 3, 0, {})); }),
              HasSubstr("a model, not tokens"));
  EXPECT_THAT(error_of([] { open(file_of<uint16_t>(7, 3, 0, {})); }), HasSubstr("begins with 7"));
  const auto small = open(whole, 2);
  EXPECT_THAT(error_of([&] { all_of(*small); }), HasSubstr("token 1 has id 2, but the vocabulary has 2 ids"));
}

}  // namespace
}  // namespace athanor
