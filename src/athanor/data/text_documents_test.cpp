#include "athanor/data/text_documents.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"

namespace athanor {
namespace {

using testing::ElementsAre;

class TextDocumentsTest : public testing::Test {
 protected:
  void write(const std::string& path, std::string_view text) { write_file_atomically(files_, path, text); }

  std::vector<std::string> read(TextDocuments documents) {
    std::vector<std::string> result;
    std::string text, document;
    for (;;) {
      const TextSource::Next next = documents.next(text);
      if (next == TextSource::Next::end) break;
      EXPECT_LE(text.size(), size_t{3} << 20);
      document += text;
      if (next == TextSource::Next::part) continue;
      if (!document.empty()) result.push_back(document);
      document.clear();
    }
    EXPECT_EQ(document, "") << "a document has no end";
    return result;
  }
  // Standard input in pieces of a size.
  static TextDocuments::Stream stream(std::string text, size_t piece) {
    return [text = std::move(text), piece, begin = size_t{0}](size_t most) mutable {
      const std::string part = text.substr(std::min(begin, text.size()), std::min(most, piece));
      begin += part.size();
      return part;
    };
  }

  MemoryFileEnvironment files_;
};

TEST_F(TextDocumentsTest, AFileIsADocument) {
  write("a.txt", "first\n\nlines");
  write("b.txt", "");
  write("c.md", std::string(5 << 20, 'x'));
  const std::vector<InputFile> inputs = {
      {"a.txt", InputKind::text}, {"b.txt", InputKind::text}, {"c.md", InputKind::text}};
  EXPECT_THAT(read({files_, inputs, {}}), ElementsAre("first\n\nlines", std::string(5 << 20, 'x')));
  EXPECT_THAT(read({files_, {inputs[0]}, {}, stream("typed", 2)}), ElementsAre("typed", "first\n\nlines"));
  EXPECT_EQ(TextDocuments(files_, inputs, {}).file_bytes(), 12 + (5 << 20));
}

// Whatever the pieces are that text comes in, a separator is a whole line.
TEST_F(TextDocumentsTest, SeparatorsAreWholeLines) {
  const std::string text = "a\n--\nb --\n-- c\n---\n--\r\n--\n\n-\n--";
  for (size_t piece = 1; piece < 40; ++piece) {
    EXPECT_THAT(read({files_, {}, {.separator = "--"}, stream(text, piece)}),
                ElementsAre("a\n", "b --\n-- c\n---\n", "\n-\n"))
        << piece;
    EXPECT_THAT(read({files_, {}, {.separator = "--"}, stream("--\nx\n-", piece)}), ElementsAre("x\n-"))
        << piece;
  }
}

TEST_F(TextDocumentsTest, RecordsAreDocuments) {
  write(
      "a.jsonl",
      "\xef\xbb\xbf{\"text\": \"one\\n\"}\r\n\n{\"text\":\"\"}\n{\"prompt\":\"two?\",\"answer\":\"three\"}");
  const std::vector<InputFile> inputs = {{"a.jsonl", InputKind::json_lines}};
  const std::vector<std::string> documents = read({files_, inputs, {}});
  ASSERT_GE(documents.size(), 3u);
  EXPECT_EQ(documents[0], "one\n");
  std::string rest;
  for (size_t i = 1; i < documents.size(); ++i) rest += documents[i];
  EXPECT_THAT(rest, testing::HasSubstr("two?"));
  EXPECT_THAT(rest, testing::HasSubstr("three"));
}

TEST_F(TextDocumentsTest, FaultsAreNamedWithTheirPlace) {
  write("a.jsonl", "{\"text\": \"one\"}\n\n{\"text\": \n");
  write("b.jsonl", "{\"body\": \"one\"}\n");
  const auto message = [&](const std::string& path, InputKind kind) {
    try {
      read({files_, {{path, kind}}, {}});
    } catch (const Error& error) {
      return error.message();
    }
    return std::string("no fault");
  };
  EXPECT_THAT(message("a.jsonl", InputKind::json_lines), testing::StartsWith("a.jsonl:3: "));
  EXPECT_THAT(message("b.jsonl", InputKind::json_lines), testing::StartsWith("b.jsonl:1: "));
  EXPECT_THAT(message("missing.txt", InputKind::text), testing::HasSubstr("missing.txt"));
  EXPECT_THAT(message("a.jsonl", InputKind::tokens), testing::HasSubstr("holds tokens"));
  EXPECT_THAT(read({files_, {{"b.jsonl", InputKind::json_lines}}, {.field = "body"}}), ElementsAre("one"));
}

}  // namespace
}  // namespace athanor
