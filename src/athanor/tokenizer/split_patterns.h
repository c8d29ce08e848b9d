// Regular expressions of tokenizer files that mean a splitting pattern.
//
// Called by readers and writers of tokenizer files. Thread safety: pure functions.
#pragma once

#include <optional>
#include <string_view>

#include "athanor/tokenizer/splitter.h"

namespace athanor {

// Knows the published spellings, also those with possessive quantifiers that match the same.
std::optional<SplitPattern> find_split_pattern(std::string_view regex);
std::string_view regex_of(SplitPattern pattern);  // of gpt2 or llama3

}  // namespace athanor
