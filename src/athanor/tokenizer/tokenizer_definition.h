// All that decides what a tokenizer does, as plain data: what readers of files and the trainer make, what
// `Tokenizer` is made of, and what is written back.
//
// Called by readers, writers, the trainer. Thread safety: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/tokenizer/splitter.h"

namespace athanor {

inline constexpr std::string_view space_mark = "\xe2\x96\x81";  // U+2581

// The units that merging begins with.
enum class TextForm : uint8_t {
  bytes,       // bytes of the words of a splitting pattern (GPT-2, Llama 3)
  characters,  // spaces become U+2581; characters, and the tokens <0x00> to <0xFF> for the bytes of those
               // that have no token (Llama 2, Mistral)
};

// Whether a space is put in front of text. A stretch is what lies between added tokens; an empty one gets
// none.
enum class SpacePrefix : uint8_t {
  none,
  always,              // in front of every stretch
  unless_space,        // in front of every stretch that does not begin with one
  first_unless_space,  // in front of the text if it begins with a stretch that does not begin with one
};

// A token found in the text as it is written, before anything else happens.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = true;       // found only where asked for; others are found always
  bool left_strip = false;   // takes white space before it along
  bool right_strip = false;  // and after it
  bool normalized = false;   // sought after the others; see TokenizerDefinition::added_in_marked_text
};

// The rank of a merge is its place in the list: the lowest is done first, the leftmost among equals.
struct TokenMerge {
  int32_t left = 0, right = 0, result = 0;
};

struct TokenizerDefinition {
  TextForm form = TextForm::bytes;
  SplitPattern pattern = SplitPattern::gpt2;  // form bytes
  SpacePrefix prefix = SpacePrefix::none;
  bool word_at_each_space = false;    // form characters: merges do not cross the beginning of a space
  bool added_in_marked_text = false;  // form characters: added tokens that are `normalized` are sought with
                                      // prefix and marked spaces, in text that has them
  bool strip_first_space = false;     // decoding drops one space at the beginning
  bool whole_words_first = false;     // a word that is a token is that token, whatever the merges say

  // By id. Form bytes: the bytes of the token; form characters: its text with U+2581 for spaces. Empty where
  // the merges have no such token (an added token, a gap).
  std::vector<std::string> tokens;
  std::vector<TokenMerge> merges;
  std::vector<AddedToken> added_tokens;
  std::optional<int32_t> beginning_of_text, end_of_text;  // added tokens that are special
};

}  // namespace athanor
