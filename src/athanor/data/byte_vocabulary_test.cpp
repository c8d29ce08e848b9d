#include "athanor/data/byte_vocabulary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    return error.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

TEST(ByteVocabulary, EveryByteComesBack) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  const auto ids = byte_vocabulary::encode(text);
  for (size_t i = 0; i < 256; ++i) EXPECT_EQ(ids[i], static_cast<int32_t>(i));
  EXPECT_EQ(byte_vocabulary::decode(ids), text);
  EXPECT_EQ(byte_vocabulary::decode(std::vector<int32_t>{72, 105, byte_vocabulary::end_of_text, 33}), "Hi!");
  EXPECT_THAT(error_of([] { byte_vocabulary::decode(std::vector<int32_t>{257}); }), HasSubstr("257"));
  EXPECT_THAT(error_of([] { byte_vocabulary::decode(std::vector<int32_t>{-1}); }), HasSubstr("-1"));
}

// Splits the text fed in pieces of every size; all must agree.
std::vector<std::string> split(const std::string& text, const std::string& separator) {
  std::vector<std::string> first;
  for (size_t piece = 1; piece <= text.size() + 1; ++piece) {
    std::vector<std::string> documents;
    std::string document;
    byte_vocabulary::DocumentSplitter splitter(
        separator, [&](std::string_view part) { document += part; },
        [&] {
          documents.push_back(document);
          document.clear();
        });
    for (size_t i = 0; i < text.size(); i += piece) splitter.append(std::string_view(text).substr(i, piece));
    splitter.finish();
    if (piece == 1) first = documents;
    EXPECT_EQ(documents, first) << "pieces of " << piece;
  }
  return first;
}

TEST(DocumentSplitter, LinesThatEqualTheSeparator) {
  EXPECT_THAT(split("a\nb\n", ""), ElementsAre("a\nb\n"));
  EXPECT_THAT(split("a\n---\nb\n", "---"), ElementsAre("a\n", "b\n"));
  EXPECT_THAT(split("a\r\n---\r\nb", "---"), ElementsAre("a\r\n", "b"));
  EXPECT_THAT(split("---\na\n---", "---"), ElementsAre("", "a\n"));
  EXPECT_THAT(split("---\n---\n", "---"), ElementsAre("", "", ""));
  EXPECT_THAT(split("", "---"), ElementsAre(""));
  // Almost the separator is text.
  EXPECT_THAT(split("--\n----\n --- \n---x\nx---\n---\r\r\n\n--", "---"),
              ElementsAre("--\n----\n --- \n---x\nx---\n---\r\r\n\n--"));
  EXPECT_THAT(split("a\n---\r", "---"), ElementsAre("a\n"));
  EXPECT_THAT(error_of([] { byte_vocabulary::DocumentSplitter("a\nb", nullptr, nullptr); }),
              HasSubstr("line"));
}

TEST(EncodeTextFile, DocumentsEndWithEndOfText) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "text", "ab\n%\n\n%\n%\nc");
  encode_text_file(files, "text", "whole", {});
  encode_text_file(files, "text", "cut", {.document_separator = "%"});
  const auto ids_of = [&](const std::string& path) {
    const auto file = TokenFile::open(files, path);
    std::vector<int32_t> ids(static_cast<size_t>(file->token_count()));
    file->read(0, ids);
    return ids;
  };
  EXPECT_THAT(ids_of("whole"), ElementsAre('a', 'b', 10, '%', 10, 10, '%', 10, '%', 10, 'c', 256));
  EXPECT_THAT(ids_of("cut"), ElementsAre('a', 'b', 10, 256, 10, 256, 'c', 256));
  EXPECT_EQ(TokenFile::open(files, "cut")->document_count(), 3);
  EXPECT_EQ(TokenFile::open(files, "cut")->document_start(2), 6);
}

TEST(EncodeTextFile, MoreThanOnePieceOfText) {
  MemoryFileEnvironment files;
  std::string text;
  for (int i = 0; text.size() < 2'500'000; ++i) text += fmt::format("line {}\n", i);
  write_file_atomically(files, "text", text);
  EXPECT_EQ(encode_text_file(files, "text", "t", {}), crc32c(text));
  const auto file = TokenFile::open(files, "t");
  std::vector<int32_t> ids(static_cast<size_t>(file->token_count()));
  file->read(0, ids);
  EXPECT_EQ(ids.back(), byte_vocabulary::end_of_text);
  EXPECT_EQ(byte_vocabulary::decode(ids), text);
}

TEST(EncodeTextFile, EmptyTextsAreRefused) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "empty", "");
  write_file_atomically(files, "separators", "%\n%\n");
  EXPECT_THAT(error_of([&] { encode_text_file(files, "empty", "t", {}); }), HasSubstr("'empty' is empty"));
  EXPECT_THAT(error_of([&] { encode_text_file(files, "separators", "t", {.document_separator = "%"}); }),
              HasSubstr("is empty (4 bytes, no document)"));
  EXPECT_THAT(error_of([&] { encode_text_file(files, "none", "t", {}); }), HasSubstr("No such file"));
  EXPECT_FALSE(files.exists("t"));
}

TEST(PrepareTokenFile, IsMadeOnceAndAgainWhenAnythingChanges) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "text.txt", "some text");
  const std::string path = prepare_token_file(files, "text.txt", "cache", {});
  const auto made = files.status(path)->modified_ns;
  EXPECT_EQ(prepare_token_file(files, "text.txt", "cache", {}), path);
  EXPECT_EQ(files.status(path)->modified_ns, made);
  EXPECT_EQ(TokenFile::open(files, path)->token_count(), 10);

  EXPECT_NE(prepare_token_file(files, "text.txt", "cache", {.document_separator = "%"}), path);
  write_file_atomically(files, "text.txt", "same size");
  const std::string other = prepare_token_file(files, "text.txt", "cache", {});
  EXPECT_NE(other, path);

  // A damaged one is made again.
  std::string bytes = read_file(files, other, 1000);
  bytes[130] ^= 1;
  write_file_atomically(files, other, bytes);
  EXPECT_EQ(prepare_token_file(files, "text.txt", "cache", {}), other);
  TokenFile::open(files, other)->verify();
}

}  // namespace
}  // namespace athanor
