// Reads and writes the files of tokenizers (docs/formats/tokenizer.md).
//
// Called by open_tokenizer and Tokenizer::save. Thread safety: pure functions.
//
// Readers take any bytes: what is damaged or not supported is an Error (user) that names the file and the
// field. They take memory in proportion to the file.
#pragma once

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

// Whether it is a tokenizer.json, whatever its name, and not a bare vocabulary.
bool is_tokenizer_json(std::string_view json, const std::string& path);

// GPT-2's pair of files. Every token of several bytes must be made by a merge, but for names in brackets.
TokenizerDefinition read_vocabulary_and_merges(std::string_view vocabulary_json,
                                               const std::string& vocabulary_path,
                                               std::string_view merges_text, const std::string& merges_path,
                                               const TokenizerRoles& roles = {});

// The text of a tokenizer.json.
std::string write_tokenizer_json(const TokenizerDefinition& definition);

}  // namespace athanor
