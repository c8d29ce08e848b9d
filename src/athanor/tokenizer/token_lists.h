// The vocabulary and merges of a tokenizer file, by the text of tokens as it stands there.
//
// Called by readers of these files. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "athanor/tokenizer/json_fields.h"
#include "athanor/tokenizer/tokenizer_definition.h"

namespace athanor {

struct TokenLists {
  std::vector<std::string> tokens;  // by id; empty: a gap
  std::unordered_map<std::string, int32_t> ids;
  std::vector<TokenMerge> merges;

  // Errors are those of `fields`, the file that is read.
  void read_vocabulary(const JsonFields& fields, const Json& vocabulary);
  void add_merge(const JsonFields& fields, const std::string& left, const std::string& right);
  void add_merge(const JsonFields& fields, const std::string& line);  // both with a blank between them
};

}  // namespace athanor
