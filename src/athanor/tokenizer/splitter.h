// Cuts text into words, the units within which merges of a byte-pair encoding happen: the splitting patterns
// of GPT-2 and Llama 3, written by hand on character classes in place of their regular expressions.
//
// Called by encoders and by the trainer of tokenizers. Thread safety: pure functions.
//
// Words cover the text without gaps, whatever its bytes are. A byte that belongs to no well-formed UTF-8
// sequence is a character of its own that is neither letter nor number nor white space.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace athanor {

enum class SplitPattern : uint8_t {
  none,  // the whole text is one word
  // 's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
  gpt2,
  // (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|
  // \s+(?!\S)|\s+
  llama3,
};

// Where the word that begins at `begin` < text.size() ends; `begin` is 0 or the end of the word before.
// What follows the text does not exist: for a piece of a longer one see `last_safe_cut`.
size_t word_end(SplitPattern pattern, std::string_view text, size_t begin);

// Calls use(std::string_view) with each word in order. No allocation.
template <class Use>
void for_each_word(SplitPattern pattern, std::string_view text, Use&& use) {
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = word_end(pattern, text, begin);
    use(text.substr(begin, end - begin));
    begin = end;
  }
}

// True if a word of every text that begins with `text` ends at `position`, and splitting may begin anew
// there: the words of the whole are those of text[0, position) and those of the rest. May be false where that
// holds.
bool is_safe_cut(SplitPattern pattern, std::string_view text, size_t position);

// The longest safe cut of `text`; 0 if there is none. Texts of any length are split in pieces: what lies
// before the cut now, the rest together with what is read next. Looks no further back than the cut.
size_t last_safe_cut(SplitPattern pattern, std::string_view text);

}  // namespace athanor
