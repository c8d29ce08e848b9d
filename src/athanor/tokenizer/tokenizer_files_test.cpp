// What readers of tokenizer files refuse, and by which name.
#include "athanor/tokenizer/tokenizer_files.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/tokenizer/tokenizer_test_support.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

Json fixture(const std::string& name) {
  return Json::parse(read_file(system_files(), test_data("tokenizers/" + name + ".json"), 1 << 20));
}

// The message with which a tokenizer of this file is refused; "" if it is taken.
std::string refusal(const std::string& text) {
  try {
    const Tokenizer tokenizer(read_tokenizer_json(text, "x/tokenizer.json"));
    tokenizer.encode("some text\n");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    return error.what();
  }
  return "";
}

struct Case {
  const char* pointer;  // JSON pointer of what is replaced
  const char* value;
  const char* named;  // in the message; "": taken
};

void expect_cases(const std::string& name, const std::vector<Case>& cases) {
  ASSERT_EQ(refusal(fixture(name).dump()), "");
  for (const Case& each : cases) {
    Json file = fixture(name);
    file[Json::json_pointer(each.pointer)] = Json::parse(each.value);
    const std::string message = refusal(file.dump());
    const std::string about = std::string(each.pointer) + " = " + each.value;
    if (*each.named == '\0') {
      EXPECT_EQ(message, "") << about;
    } else {
      EXPECT_NE(message.find(each.named), std::string::npos) << about << ": " << message;
    }
  }
}

TEST(TokenizerFiles, FieldsOfAByteLevelFile) {
  expect_cases(
      "llama3_small",
      {
          {"/version", "\"2.0\"", "version \"2.0\""},
          {"/truncation", R"({"max_length": 512})", "\"truncation\""},
          {"/padding", "{}", "\"padding\""},
          {"/normalizer", R"({"type": "NFC"})", "NFC"},
          {"/normalizer", R"({"type": "Sequence", "normalizers": [{"type": "Lowercase"}]})", "Lowercase"},
          {"/normalizer", R"({"type": "Sequence", "normalizers": []})", ""},
          {"/normalizer", R"({"type": "Sequence"})", "Sequence"},
          {"/pre_tokenizer", "null", "neither ByteLevel"},
          {"/pre_tokenizer", R"({"type": "Whitespace"})", "Whitespace"},
          {"/pre_tokenizer/pretokenizers/0/pattern/Regex", R"("\\s+|\\w+")", "\\s+|\\w+"},
          {"/pre_tokenizer/pretokenizers/0/pattern", R"({"String": "x"})", "Split"},
          {"/pre_tokenizer/pretokenizers/0/behavior", "\"MergedWithNext\"", "MergedWithNext"},
          {"/pre_tokenizer/pretokenizers/0/behavior", "\"Removed\"", "Removed"},
          {"/pre_tokenizer/pretokenizers/0/behavior", "7", "behavior"},
          {"/pre_tokenizer/pretokenizers/1/add_prefix_space", "true", "add_prefix_space"},
          {"/pre_tokenizer/pretokenizers/1/use_regex", "true", "use_regex"},
          {"/pre_tokenizer/pretokenizers/1/type", "\"Digits\"", "Digits"},
          {"/post_processor", R"({"type": "RobertaProcessing"})", "RobertaProcessing"},
          {"/post_processor", "null", ""},
          {"/decoder", R"({"type": "WordPiece"})", "WordPiece"},
          {"/decoder", "null", ""},
          {"/model/type", "\"Unigram\"", "Unigram"},
          {"/model/dropout", "0.1", "dropout"},
          {"/model/dropout", "0.0", ""},
          {"/model/continuing_subword_prefix", "\"##\"", "continuing_subword_prefix"},
          {"/model/end_of_word_suffix", "\"</w>\"", "end_of_word_suffix"},
          {"/model/end_of_word_suffix", "\"\"", ""},
          {"/model/unk_token", "\"<|end_of_text|>\"", ""},
          {"/model/ignore_merges", "\"yes\"", "ignore_merges"},
          {"/model/merges", "{}", "merges"},
          {"/model/merges", R"(["a b c"])", "a b c"},
          {"/model/merges", R"(["ab"])", "merge 0"},
          {"/model/merges", R"([["a", "b", "c"]])", "merge 0"},
          {"/model/merges", R"([["a", 1]])", "merge 0"},
          {"/model/merges", R"([["a", "\u2603"]])", "merge 0"},
          {"/model/vocab", "[]", "vocabulary"},
          {"/model/vocab", "{}", "vocabulary is empty"},
          {"/model/vocab/!", "1.5", "\"!\""},
          {"/model/vocab/!", "-1", "\"!\""},
          {"/model/vocab/!", "4000000000", "\"!\""},
          {"/model/vocab/!", "18446744073709551615", "\"!\""},
          {"/model/vocab/!", "2000000000", "2000000000"},
          {"/model/vocab/!", "5", "same id"},
          {"/model/vocab/\u2603", "600", "stand for no byte"},
          {"/model", "null", "\"model\""},
          {"/model", "3", "object"},
          {"/added_tokens", "{}", "added_tokens"},
          {"/added_tokens/0", "null", "object"},
          {"/added_tokens/0/single_word", "true", "single_word"},
          {"/added_tokens/1/content", "\"\"", "0 bytes"},
          {"/added_tokens/1/content", "\"<|begin_of_text|>\"", "twice"},
          {"/added_tokens/0/id", "503", "twice"},
          {"/added_tokens/0/id", "1000000000", "1000000000"},
          {"/added_tokens/0/id", "null", "no id"},
          {"/added_tokens/0/id", "3", "otherwise"},
          {"/added_tokens/0/special", "0", "special"},
      });
}

TEST(TokenizerFiles, FieldsOfACharacterFile) {
  expect_cases("llama2_small", {
                                   {"/normalizer/normalizers/0/prepend", "\"_\"", "Prepend"},
                                   {"/normalizer/normalizers/1/content", "\"_\"", "Replace"},
                                   {"/normalizer/normalizers/1/pattern", R"({"Regex": " "})", "Replace"},
                                   {"/normalizer", R"({"type": "Prepend", "prepend": "\u2581"})", "Prepend"},
                                   {"/normalizer", "null", "neither ByteLevel"},
                                   {"/pre_tokenizer", R"({"type": "ByteLevel"})", "ByteLevel"},
                                   {"/pre_tokenizer", R"({"type": "Metaspace"})", "Metaspace"},
                                   {"/model/byte_fallback", "false", "byte_fallback"},
                                   {"/decoder/decoders/3/start", "2", "Strip"},
                                   {"/decoder/decoders/3/stop", "1", "Strip"},
                                   {"/decoder/decoders/0/content", "\"_\"", "Replace"},
                                   {"/decoder", "null", ""},
                               });
  expect_cases("mistral_small", {
                                    {"/pre_tokenizer/replacement", "\"_\"", "Metaspace"},
                                    {"/pre_tokenizer/prepend_scheme", "\"second\"", "second"},
                                    {"/pre_tokenizer/split", "1", "split"},
                                });
}

TEST(TokenizerFiles, TextThatIsNoFile) {
  const std::string whole = fixture("llama2_small").dump();
  for (const std::string& text :
       {std::string(), std::string("[]"), std::string("{}"), std::string("null"), std::string("\xff\xfe"),
        std::string("{\"model\": \"\xff\"}"), whole.substr(0, 5000), whole.substr(0, whole.size() - 1),
        whole + "}", std::string(1 << 20, '[')}) {
    EXPECT_NE(refusal(text), "") << text.substr(0, 20);
  }
}

TEST(TokenizerFiles, KnownSpellingsOfPatterns) {
  for (
      const auto& [regex, pattern] : std::vector<std::pair<const char*, SplitPattern>>{
          {R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
           SplitPattern::gpt2},
          {R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)", SplitPattern::gpt2},
          {R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
           SplitPattern::llama3}}) {
    Json file = fixture("llama3_small");
    file["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = regex;
    EXPECT_EQ(read_tokenizer_json(file.dump(), "x").pattern, pattern);
  }
}

TEST(TokenizerFiles, VocabularyAndMerges) {
  const auto read = [](const std::string& vocabulary, const std::string& merges) {
    try {
      read_vocabulary_json(vocabulary, "vocab.json", [&] { return MergesText{"merges.txt", merges}; });
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string vocabulary = R"({"a": 0, "b": 1, "ab": 2})";
  EXPECT_EQ(read(vocabulary, "#version: 0.2\na b\n"), "");
  EXPECT_EQ(read(vocabulary, "a b\r\n\r\n"), "");
  EXPECT_NE(
      read(vocabulary, "").find("1 of its 3 tokens, such as \"ab\", are made by no merge of merges.txt"),
      std::string::npos);
  EXPECT_EQ(read(R"({"a": 0, "b": 1, "<pad>": 2, "[MASK]": 3})", ""), "");
  EXPECT_NE(read(vocabulary, "a c\n").find("merges.txt: merge 0"), std::string::npos);
  EXPECT_NE(read(vocabulary, "a b c\n").find("merge 0"), std::string::npos);
  EXPECT_NE(read("{", "a b").find("vocab.json: is no JSON"), std::string::npos);
}

}  // namespace
}  // namespace athanor
