// What the tests of the room share.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/base/philox.h"
#include "athanor/tokenizer/byte_level.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/tokenizer/tokenizer.h"

namespace athanor {

inline std::string test_data(const std::string& name) {
  return std::string(ATHANOR_SOURCE_DIR "/tests/data/") + name;
}

inline std::shared_ptr<const Tokenizer> gpt2_tokenizer() {
  return open_tokenizer(system_files(), test_data("gpt2/vocab.json"));
}

// A byte-level tokenizer: all bytes by value, then the results of the merges, then <|endoftext|>.
inline TokenizerDefinition byte_definition(const std::vector<std::pair<std::string, std::string>>& merges,
                                           SplitPattern pattern = SplitPattern::gpt2) {
  TokenizerDefinition definition;
  definition.pattern = pattern;
  for (int byte = 0; byte < 256; ++byte) definition.tokens.emplace_back(1, static_cast<char>(byte));
  const auto id_of = [&](const std::string& token) {
    for (size_t id = 0; id < definition.tokens.size(); ++id) {
      if (definition.tokens[id] == token) return static_cast<int32_t>(id);
    }
    definition.tokens.push_back(token);
    return static_cast<int32_t>(definition.tokens.size() - 1);
  };
  for (const auto& [left, right] : merges) {
    const int32_t first = id_of(left), second = id_of(right);
    definition.merges.push_back({first, second, id_of(left + right)});
  }
  definition.end_of_text = static_cast<int32_t>(definition.tokens.size());
  definition.added_tokens.push_back({.id = *definition.end_of_text, .content = "<|endoftext|>"});
  return definition;
}

// Random bytes of which about half are characters of all lengths.
inline std::string random_bytes(uint64_t seed, size_t pieces) {
  std::string text;
  for (size_t i = 0; i < pieces; ++i) {
    const uint64_t random = mix64(mix64(seed + 1) + i);
    text += static_cast<char>(random >> 8);
    if (random % 2 == 0) text += "e\xcc\x81\xf0\x9f\x91\xa9\xe2\x80\x8d  a'LL 12345\r\n\xe6\x97\xa5";
    if (random % 16 < 12) text.erase(text.size() - random % std::min<size_t>(text.size(), 24));
  }
  return text;
}

}  // namespace athanor
