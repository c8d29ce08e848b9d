#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/tokenizer/byte_level.h"
#include "athanor/tokenizer/split_patterns.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/tokenizer/tokenizer_files.h"
#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

std::string quoted(std::string_view text) {
  std::string result = "\"";
  for (size_t i = 0; i < text.size();) {
    const Character character = character_at(text, i);
    if (!character.valid) {
      throw_user_error("a token's text is not UTF-8, so that it cannot be written to a tokenizer.json",
                       "give special tokens names that are text");
    }
    if (character.code < 0x20 || character.code == 0x7f) {
      result += fmt::format("\\u{:04x}", character.code);
    } else {
      if (character.code == '"' || character.code == '\\') result += '\\';
      result += text.substr(i, character.length);
    }
    i += character.length;
  }
  return result + '"';
}

std::string pre_tokenizer_json(const TokenizerDefinition& definition) {
  constexpr const char* byte_level =
      R"({{"type": "ByteLevel", "add_prefix_space": {}, "trim_offsets": true, "use_regex": {}}})";
  const bool prefix = definition.prefix == SpacePrefix::unless_space;
  if (definition.form == TextForm::bytes) {
    if (definition.pattern != SplitPattern::llama3) {
      return fmt::format(fmt::runtime(byte_level), prefix, definition.pattern == SplitPattern::gpt2);
    }
    return fmt::format(R"({{"type": "Sequence", "pretokenizers": [
    {{"type": "Split", "pattern": {{"Regex": {}}}, "behavior": "Isolated", "invert": false}},
    {}]}})",
                       quoted(regex_of(definition.pattern)),
                       fmt::format(fmt::runtime(byte_level), false, false));
  }
  if (definition.added_in_marked_text) return "null";
  return fmt::format(R"({{"type": "Metaspace", "replacement": "{}", "prepend_scheme": "{}", "split": {}}})",
                     space_mark,
                     definition.prefix == SpacePrefix::none ? "never"
                     : prefix                               ? "always"
                                                            : "first",
                     definition.word_at_each_space);
}

std::string normalizer_json(const TokenizerDefinition& definition) {
  if (!definition.added_in_marked_text) return "null";
  const std::string prepend = definition.prefix == SpacePrefix::always
                                  ? fmt::format(R"({{"type": "Prepend", "prepend": "{}"}}, )", space_mark)
                                  : "";
  return fmt::format(
      R"({{"type": "Sequence", "normalizers": [{}{{"type": "Replace", "pattern": {{"String": " "}}, "content": "{}"}}]}})",
      prepend, space_mark);
}

std::string decoder_json(const TokenizerDefinition& definition) {
  if (definition.form == TextForm::bytes) {
    return R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true})";
  }
  return fmt::format(
      R"({{"type": "Sequence", "decoders": [
    {{"type": "Replace", "pattern": {{"String": "{}"}}, "content": " "}}, {{"type": "ByteFallback"}}, {{"type": "Fuse"}}{}]}})",
      space_mark,
      definition.strip_first_space ? R"(, {"type": "Strip", "content": " ", "start": 1, "stop": 0})" : "");
}

std::string post_processor_json(const TokenizerDefinition& definition,
                                const std::unordered_map<int32_t, const AddedToken*>& added_tokens) {
  if (!definition.beginning_of_text) {
    return definition.form == TextForm::bytes
               ? R"({"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true})"
               : "null";
  }
  const std::string name = quoted(added_tokens.at(*definition.beginning_of_text)->content);
  return fmt::format(R"({{"type": "TemplateProcessing",
    "single": [{{"SpecialToken": {{"id": {0}, "type_id": 0}}}}, {{"Sequence": {{"id": "A", "type_id": 0}}}}],
    "pair": [{{"SpecialToken": {{"id": {0}, "type_id": 0}}}}, {{"Sequence": {{"id": "A", "type_id": 0}}}},
      {{"SpecialToken": {{"id": {0}, "type_id": 1}}}}, {{"Sequence": {{"id": "B", "type_id": 1}}}}],
    "special_tokens": {{{0}: {{"id": {0}, "ids": [{1}], "tokens": [{0}]}}}}}})",
                     name, *definition.beginning_of_text);
}

}  // namespace

std::string write_tokenizer_json(const TokenizerDefinition& definition) {
  std::vector<AddedToken> added = definition.added_tokens;
  std::sort(added.begin(), added.end(), [](const auto& a, const auto& b) { return a.id < b.id; });
  std::unordered_map<int32_t, const AddedToken*> added_by_id;
  for (const AddedToken& token : added) added_by_id.emplace(token.id, &token);

  std::string json =
      "{\n  \"version\": \"1.0\",\n  \"truncation\": null,\n  \"padding\": null,\n  \"added_tokens\": [";
  const auto out = std::back_inserter(json);
  const char* separator = "\n";
  for (const AddedToken& token : added) {
    fmt::format_to(
        out,
        "{}    {{\"id\": {}, \"content\": {}, \"single_word\": false, \"lstrip\": {}, \"rstrip\": {}, "
        "\"normalized\": {}, \"special\": {}{}}}",
        std::exchange(separator, ",\n"), token.id, quoted(token.content), token.left_strip, token.right_strip,
        token.normalized, token.special, token.id == definition.end_of_text ? ", \"end_of_text\": true" : "");
  }
  fmt::format_to(
      out,
      "],\n  \"normalizer\": {},\n  \"pre_tokenizer\": {},\n  \"post_processor\": {},\n  \"decoder\": {},\n",
      normalizer_json(definition), pre_tokenizer_json(definition),
      post_processor_json(definition, added_by_id), decoder_json(definition));
  fmt::format_to(out,
                 "  \"model\": {{\"type\": \"BPE\", \"dropout\": null, \"unk_token\": null, "
                 "\"continuing_subword_prefix\": null, \"end_of_word_suffix\": null, \"fuse_unk\": false, "
                 "\"byte_fallback\": {}, \"ignore_merges\": {},\n    \"vocab\": {{",
                 definition.form == TextForm::characters, definition.whole_words_first);
  std::vector<std::string> names;  // of the tokens of merges, as they are written
  separator = "\n";
  for (size_t id = 0; id < definition.tokens.size(); ++id) {
    const std::string& token = definition.tokens[id];
    const auto named = added_by_id.find(static_cast<int32_t>(id));
    names.push_back(quoted(definition.form == TextForm::bytes ? to_byte_alphabet(token) : token));
    // An added token that is not special stands in the vocabulary only if it is a token of words too.
    if (token.empty() && (named == added_by_id.end() || !named->second->special)) continue;
    fmt::format_to(out, "{}      {}: {}", std::exchange(separator, ",\n"),
                   token.empty() ? quoted(named->second->content) : names.back(), id);
  }
  json += "},\n    \"merges\": [";
  separator = "\n";
  for (const TokenMerge& merge : definition.merges) {
    fmt::format_to(out, "{}      [{}, {}]", std::exchange(separator, ",\n"),
                   names[static_cast<size_t>(merge.left)], names[static_cast<size_t>(merge.right)]);
  }
  json += "]}\n}\n";
  return json;
}

void Tokenizer::save(FileEnvironment& files, const std::string& path) const {
  write_file_atomically(files, path, write_tokenizer_json(definition_));
}

}  // namespace athanor
