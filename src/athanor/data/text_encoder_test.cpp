#include "athanor/data/text_encoder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/base/error_test_support.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/data/text_files.h"
#include "athanor/data/token_file.h"
#include "athanor/tokenizer/open_tokenizer.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Tokenizer> bytes() {
  static const auto tokenizer = open_tokenizer(system_files(), "bytes");
  return tokenizer;
}

// Bytes, a merge of "ab", and special tokens of chats.
std::shared_ptr<const Tokenizer> chat_tokenizer() {
  TokenizerDefinition definition = bytes()->definition();
  int32_t id = 257;
  for (const char* name : {"<|im_start|>", "<|im_end|>", "<|begin_of_text|>", "<|start_header_id|>",
                           "<|end_header_id|>", "<|eot_id|>"}) {
    definition.added_tokens.push_back({.id = id++, .content = name});
  }
  return std::make_shared<const Tokenizer>(std::move(definition));
}

// Collects documents as text; unlearned stretches stand in brackets.
struct Collector {
  void append(std::span<const int32_t> ids, bool learned = true) {
    if (ids.empty()) return;
    if (!learned) document += "[";
    for (const int32_t id : ids) {
      if (id == 256)
        document += "$";
      else
        document += tokenizer->token_bytes(id);
    }
    if (!learned) document += "]";
  }
  void end_document() {
    documents.push_back(document);
    document.clear();
  }
  std::shared_ptr<const Tokenizer> tokenizer = bytes();
  std::string document = {};
  std::vector<std::string> documents = {};
};

std::vector<std::string> documents_of(const std::string& contents, InputKind kind,
                                      const TextOptions& options = {},
                                      std::shared_ptr<const Tokenizer> tokenizer = bytes()) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "x", contents);
  Collector collector{.tokenizer = tokenizer};
  TextEncoder encoder(files, {{"x", kind}}, std::move(tokenizer), options);
  while (const auto block = encoder.next()) write_block(*block, collector);
  EXPECT_EQ(collector.document, "");
  return collector.documents;
}

std::vector<std::string> split(const std::string& text, const std::string& separator) {
  return documents_of(text, InputKind::text, {.separator = separator, .block_bytes = size_t{1} << 14});
}

TEST(TextEncoder, LinesThatEqualTheSeparatorCut) {
  EXPECT_THAT(split("a\nb\n", ""), ElementsAre("a\nb\n$"));
  EXPECT_THAT(split("a\n---\nb\n", "---"), ElementsAre("a\n$", "b\n$"));
  EXPECT_THAT(split("a\r\n---\r\nb", "---"), ElementsAre("a\r\n$", "b$"));
  EXPECT_THAT(split("---\na\n---", "---"), ElementsAre("a\n$"));
  EXPECT_THAT(split("---\n---\n", "---"), ElementsAre());
  EXPECT_THAT(split("", "---"), ElementsAre());
  EXPECT_THAT(split("ab\n%\n\n%\n%\nc", "%"), ElementsAre("ab\n$", "\n$", "c$"));
  // Almost the separator is text.
  EXPECT_THAT(split("--\n----\n --- \n---x\nx---\n---\r\r\n\n--", "---"),
              ElementsAre("--\n----\n --- \n---x\nx---\n---\r\r\n\n--$"));
  EXPECT_THAT(split("a\n---\r", "---"), ElementsAre("a\n$"));
  EXPECT_THAT(error_of([] { split("a", "a\nb"); }), HasSubstr("line break"));
}

// Separators, long lines and line breaks at and around the borders of blocks of 16 KiB.
TEST(TextEncoder, BlocksDoNotShow) {
  constexpr size_t block = size_t{1} << 14;
  for (const std::string& separator : {std::string("---"), std::string()}) {
    for (int shift = -5; shift <= (separator.empty() ? -5 : 5); ++shift) {
      std::string text(block + static_cast<size_t>(shift + 5) - 5, 'x');
      text += "\n---\nshort\n---";
      text += std::string(block - 3, 'y') + "\n---\r\n" + std::string(block / 2, 'z');
      std::vector<std::string> expected;
      if (separator.empty()) {
        expected = {text + "$"};
      } else {
        expected = {text.substr(0, text.find("---")) + "$",
                    "short\n---" + std::string(block - 3, 'y') + "\n$", std::string(block / 2, 'z') + "$"};
      }
      EXPECT_TRUE(split(text, separator) == expected) << shift;  // too long to print
    }
  }
}

TEST(TextEncoder, TheSameForEveryNumberOfThreadsAndFromEveryPlace) {
  MemoryFileEnvironment files;
  std::string text, lines;
  for (int i = 0; text.size() < 100'000; ++i) text += fmt::format("line {}\n{}", i, i % 97 == 0 ? "%\n" : "");
  for (int i = 0; lines.size() < 60'000; ++i) lines += fmt::format("{{\"text\": \"number {}\"}}\n", i);
  write_file_atomically(files, "a", text);
  write_file_atomically(files, "b", lines);
  write_file_atomically(files, "empty", "");
  const std::vector<InputFile> inputs = {{"a", InputKind::text},
                                         {"empty", InputKind::text},
                                         {"b", InputKind::json_lines},
                                         {"a", InputKind::text}};
  const auto run = [&](int threads, TextPlace begin, std::vector<TextPlace>* places) {
    Collector collector;
    TextEncoder encoder(files, inputs, bytes(),
                        {.separator = "%", .threads = threads, .block_bytes = 1 << 14}, begin);
    std::vector<int32_t> ids;
    while (const auto block = encoder.next()) {
      ids.insert(ids.end(), block->ids.begin(), block->ids.end());
      if (places != nullptr) places->push_back(block->after);
    }
    return ids;
  };
  std::vector<TextPlace> places;
  const auto one = run(1, {}, &places);
  EXPECT_EQ(run(4, {}, nullptr), one);
  EXPECT_EQ(run(3, {}, nullptr), one);
  ASSERT_GT(places.size(), 6U);
  for (size_t i = 0; i < places.size(); i += 2) {
    const TextPlace& place = places[i];
    const auto rest = run(2, place, nullptr);
    ASSERT_LE(rest.size(), one.size());
    EXPECT_TRUE(std::equal(rest.rbegin(), rest.rend(), one.rbegin()));
  }
}

TEST(TextEncoder, JsonLines) {
  const auto read = [](const std::string& lines, TextOptions options = {}) {
    return documents_of(lines, InputKind::json_lines, options);
  };
  EXPECT_THAT(read("{\"text\": \"a\\nb\"}\r\n\n  \n{\"other\": 1, \"text\": \"\\u00e9\"}"),
              ElementsAre("a\nb$", "\xc3\xa9$"));
  EXPECT_THAT(read("\xef\xbb\xbf{\"body\": \"a\"}\n{\"body\": \"\"}\n", {.field = "body"}),
              ElementsAre("a$"));
  EXPECT_THAT(read("{\"prompt\": \"1+1=\", \"answer\": \"2\"}"), ElementsAre("[1+1=]2$"));
  EXPECT_THAT(read("{\"prompt\": \"\", \"answer\": \"2\"}"), ElementsAre("2$"));
  EXPECT_THAT(read(R"({"messages": [{"role": "system", "content": "Be brief."},
)"
                   "{\"messages\": []}"
                   "\n",
                   {.skip_bad = true}),
              ElementsAre());
  EXPECT_THAT(
      read(R"({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]})"),
      ElementsAre("[User: ][Hi\n][Assistant: ]Ho\n$"));
  EXPECT_THAT(
      read(R"({"messages": [{"role": "assistant", "content": "Ho"}, {"role": "user", "content": "Hi"}]})"),
      ElementsAre("[Assistant: ]Ho\n[User: ][Hi\n][$]"));
}

TEST(TextEncoder, ChatTemplates) {
  const std::string line =
      R"({"messages": [{"role": "system", "content": " Be brief. "}, {"role": "user", "content": "Hi"}, )"
      R"({"role": "assistant", "content": "Ho <|im_end|>"}]})";
  const auto read = [&](ChatTemplate chat) {
    return documents_of(line, InputKind::json_lines, {.chat = chat}, chat_tokenizer());
  };
  EXPECT_THAT(read(ChatTemplate::chatml),
              ElementsAre("[<|im_start|>][system\n][ Be brief. ][<|im_end|>][\n]"
                          "[<|im_start|>][user\n][Hi][<|im_end|>][\n]"
                          "[<|im_start|>][assistant\n]Ho <|im_end|><|im_end|>[\n][$]"));
  EXPECT_THAT(
      read(ChatTemplate::llama3),
      ElementsAre("[<|begin_of_text|>][<|start_header_id|>][system][<|end_header_id|>][\n\n][Be brief.]"
                  "[<|eot_id|>][<|start_header_id|>][user][<|end_header_id|>][\n\n][Hi][<|eot_id|>]"
                  "[<|start_header_id|>][assistant][<|end_header_id|>][\n\n]Ho <|im_end|><|eot_id|>[$]"));
  // What the content spells is text: the first <|im_end|> above is ten bytes, not a token.
  MemoryFileEnvironment files;
  write_file_atomically(files, "x", line);
  TextEncoder encoder(files, {{"x", InputKind::json_lines}}, chat_tokenizer(),
                      {.chat = ChatTemplate::chatml});
  const auto block = encoder.next();
  ASSERT_TRUE(block);
  EXPECT_EQ(std::count(block->ids.begin(), block->ids.end(), 258), 3);
  EXPECT_THAT(error_of([&] { documents_of(line, InputKind::json_lines, {.chat = ChatTemplate::llama3}); }),
              HasSubstr("no special token <|begin_of_text|>"));
}

TEST(TextEncoder, BadLinesAreNamedOrCounted) {
  const std::string lines =
      "{\"text\": \"a\"}\n{\"text\": 1}\nnonsense\n[1]\n{\"none\": 2}\n{\"text\": \"b\"}\n"
      "{\"messages\": [{\"role\": \"tool\", \"content\": \"x\"}]}\n{\"text\": \"\xff\"}\n";
  EXPECT_THAT(error_of([&] { documents_of(lines, InputKind::json_lines); }),
              HasSubstr("x:2: \"text\" is no string but number"));
  EXPECT_THAT(error_of([&] { documents_of(std::string(1000, '['), InputKind::json_lines); }),
              HasSubstr("x:1: it is nested more than 64 deep"));
  EXPECT_THAT(error_of([&] { documents_of("\n\n\n{", InputKind::json_lines); }),
              HasSubstr("x:4: this is no JSON: column 2: "));
  MemoryFileEnvironment files;
  write_file_atomically(files, "x", lines);
  TextEncoder encoder(files, {{"x", InputKind::json_lines}}, bytes(), {.skip_bad = true});
  const auto block = encoder.next();
  ASSERT_TRUE(block);
  EXPECT_EQ(block->bad_line_count, 6);
  ASSERT_EQ(block->bad_lines.size(), 5U);
  EXPECT_THAT(block->bad_lines[1], HasSubstr("x:3: "));
  EXPECT_THAT(block->bad_lines[4], HasSubstr("the role is \"tool\""));
  EXPECT_EQ(block->ids, (std::vector<int32_t>{'a', 256, 'b', 256}));
}

// The first error in the order of the text is the one that is told, whatever thread meets which first.
TEST(TextEncoder, ErrorsComeInOrder) {
  MemoryFileEnvironment files;
  std::string lines;
  while (lines.size() < 30'000) lines += "{\"text\": \"some words of a text\"}\n";
  const auto good = std::count(lines.begin(), lines.end(), '\n');
  lines += "first\n";
  while (lines.size() < 120'000) lines += "later\n";
  write_file_atomically(files, "x", lines);
  TextEncoder encoder(files, {{"x", InputKind::json_lines}, {"gone", InputKind::text}}, bytes(),
                      {.threads = 4, .block_bytes = 1 << 14});
  EXPECT_TRUE(encoder.next());
  EXPECT_THAT(error_of([&] { encoder.next(); }), HasSubstr(fmt::format("x:{}: ", good + 1)));
  TextEncoder missing(files, {{"gone", InputKind::text}}, bytes(), {});
  EXPECT_THAT(error_of([&] { missing.next(); }), HasSubstr("gone"));
}

TEST(EncodeTextFiles, WritesTokenFiles) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "x", "ab\n%\n\n%\n%\nc");
  encode_text_files(files, {{"x", InputKind::text}}, bytes(), {.separator = "%"}, "t");
  const auto file = TokenFile::open(files, "t");
  std::vector<int32_t> ids(static_cast<size_t>(file->token_count()));
  file->read(0, ids);
  EXPECT_THAT(ids, ElementsAre('a', 'b', 10, 256, 10, 256, 'c', 256));
  EXPECT_EQ(file->document_count(), 3);
  EXPECT_EQ(file->document_start(2), 6);
  EXPECT_EQ(file->tokenizer_identity(), bytes()->identity());
  write_file_atomically(files, "c", R"({"prompt": "12", "answer": "3"})");
  encode_text_files(files, {{"c", InputKind::json_lines}}, chat_tokenizer(), {}, "u");
  const auto chat = TokenFile::open(files, "u");
  EXPECT_EQ(chat->tokenizer_identity(), chat_tokenizer()->identity());
  EXPECT_EQ(chat->unlearned_in({0, 4}), (TokenRange{0, 2}));

  write_file_atomically(files, "empty", "");
  write_file_atomically(files, "separators", "%\n%\n");
  const auto refused = [&](const std::string& path) {
    return error_of(
        [&] { encode_text_files(files, {{path, InputKind::text}}, bytes(), {.separator = "%"}, "n"); });
  };
  EXPECT_THAT(refused("empty"), HasSubstr("'empty' is empty"));
  EXPECT_THAT(refused("separators"), HasSubstr("4 bytes, no document"));
  EXPECT_THAT(refused("none"), HasSubstr("No such file"));
  EXPECT_FALSE(files.exists("n"));
}

TEST(PrepareTokenFile, IsMadeOnceAndAgainWhenAnythingChanges) {
  MemoryFileEnvironment files;
  write_file_atomically(files, "text.txt", "some text");
  const std::vector<InputFile> inputs = {{"text.txt", InputKind::text}};
  const auto prepare = [&](const TextOptions& options = {}) {
    return prepare_token_file(files, inputs, bytes(), options, "cache");
  };
  const std::string path = prepare();
  const auto made = files.status(path)->modified_ns;
  EXPECT_EQ(prepare(), path);
  EXPECT_EQ(files.status(path)->modified_ns, made);
  EXPECT_EQ(TokenFile::open(files, path)->token_count(), 10);
  EXPECT_NE(prepare({.separator = "%"}), path);
  EXPECT_NE(prepare_token_file(files, inputs, chat_tokenizer(), {}, "cache"), path);
  write_file_atomically(files, "text.txt", "same size");
  const std::string other = prepare();
  EXPECT_NE(other, path);

  // A damaged one is made again.
  std::string damaged = read_file(files, other, 1000);
  damaged[130] ^= 1;
  write_file_atomically(files, other, damaged);
  EXPECT_EQ(prepare(), other);
  TokenFile::open(files, other)->verify();
}

}  // namespace
}  // namespace athanor
