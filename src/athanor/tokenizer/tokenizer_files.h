// Reads and writes the files of tokenizers (docs/formats/tokenizer.md).
//
// Called by open_tokenizer and Tokenizer::save. Thread safety: pure functions.
//
// Readers take any bytes: what is damaged or not supported is an Error (user) that names the file and the
// field. They take memory in proportion to the file.
#pragma once

#include <functional>
#include <string>
#include <string_view>

#include "athanor/tokenizer/tokenizer_definition.h"

namespace athanor {

// Names that Hugging Face's tokenizer_config.json gives to special tokens; empty where it gives none.
struct TokenizerRoles {
  std::string beginning_of_text, end_of_text;
};
TokenizerRoles read_tokenizer_config(std::string_view json, const std::string& path);

// Hugging Face's tokenizer.json. `roles` come before what the file itself says.
TokenizerDefinition read_tokenizer_json(std::string_view json, const std::string& path,
                                        const TokenizerRoles& roles = {});

// A vocab.json: the first of GPT-2's pair of files, whose second is then asked for; or a tokenizer.json of
// that name. Every token of several bytes must be made by a merge, but for names in brackets.
struct MergesText {
  std::string path, text;
};
TokenizerDefinition read_vocabulary_json(std::string_view json, const std::string& path,
                                         const std::function<MergesText()>& merges,
                                         const TokenizerRoles& roles = {});

// The text of a tokenizer.json.
std::string write_tokenizer_json(const TokenizerDefinition& definition);

}  // namespace athanor
