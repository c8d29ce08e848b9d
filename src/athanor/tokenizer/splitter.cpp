#include "athanor/tokenizer/splitter.h"

#include <array>

#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

using enum CharacterClass;

constexpr auto beyond_ascii = static_cast<CharacterClass>(4);

constexpr std::array<CharacterClass, 256> make_byte_classes() {
  std::array<CharacterClass, 256> classes{};
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool is_letter = (byte >= 'a' && byte <= 'z') || (byte >= 'A' && byte <= 'Z');
    const bool is_space = byte == ' ' || (byte >= '\t' && byte <= '\r');
    classes[byte] = byte >= 0x80                 ? beyond_ascii
                    : is_letter                  ? letter
                    : byte >= '0' && byte <= '9' ? number
                    : is_space                   ? space
                                                 : other;
  }
  return classes;
}

constexpr std::array<CharacterClass, 256> byte_classes = make_byte_classes();

// A place in the text: the character there, and the text's end as a class of its own.
class Cursor {
 public:
  Cursor(std::string_view text, size_t position) : text_(text), position_(position) { look(); }

  bool at_end() const { return position_ >= text_.size(); }
  size_t position() const { return position_; }
  bool is(CharacterClass wanted) const { return !at_end() && class_ == wanted; }
  bool is_byte(char wanted) const { return !at_end() && text_[position_] == wanted; }
  bool is_line_break() const { return is_byte('\r') || is_byte('\n'); }

  void advance() {
    position_ += length_;
    look();
  }
  void skip(CharacterClass wanted) {
    while (is(wanted)) advance();
  }

 private:
  void look() {
    if (at_end()) return;
    class_ = byte_classes[static_cast<uint8_t>(text_[position_])];
    length_ = 1;
    if (class_ != beyond_ascii) return;
    const Character character = character_at(text_, position_);
    class_ = class_of(character.code);
    length_ = character.length;
  }

  std::string_view text_;
  size_t position_;
  size_t length_ = 1;
  CharacterClass class_ = other;
};

// The length of the contraction at `position`, where an apostrophe stands; 0 if there is none.
size_t contraction_length(std::string_view text, size_t position, bool any_case) {
  const auto at = [&](size_t i) {
    const char c = position + i < text.size() ? text[position + i] : '\0';
    return any_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (at(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return at(2) == 'e' ? 3 : 0;
    case 'l':
      return at(2) == 'l' ? 3 : 0;
    case '\xc5':  // U+017F, the long s: another case of s
      return any_case && at(2) == '\xbf' ? 3 : 0;
    default:
      return 0;
  }
}

// \s+(?!\S)|\s+: a run of white space leaves its last character to a word that follows. With `line_breaks`,
// \s*[\r\n]+ comes first: up to the run's last line break.
size_t space_end(Cursor cursor, bool line_breaks) {
  const size_t begin = cursor.position();
  size_t last = begin, after_break = begin;
  while (cursor.is(space)) {
    last = cursor.position();
    const bool line_break = cursor.is_line_break();
    cursor.advance();
    if (line_break) after_break = cursor.position();
  }
  if (line_breaks && after_break > begin) return after_break;
  return cursor.at_end() || last == begin ? cursor.position() : last;
}

size_t gpt2_end(std::string_view text, size_t begin) {
  Cursor cursor(text, begin);
  if (cursor.is_byte('\'')) {
    if (const size_t length = contraction_length(text, begin, false); length > 0) return begin + length;
  }
  const Cursor first = cursor;
  if (cursor.is_byte(' ')) cursor.advance();
  for (const CharacterClass kind : {letter, number, other}) {
    if (!cursor.is(kind)) continue;
    cursor.skip(kind);
    return cursor.position();
  }
  return space_end(first, false);
}

size_t llama3_end(std::string_view text, size_t begin) {
  Cursor cursor(text, begin);
  if (cursor.is_byte('\'')) {
    if (const size_t length = contraction_length(text, begin, true); length > 0) return begin + length;
  }
  if (cursor.is(number)) {
    for (int digits = 0; digits < 3 && cursor.is(number); ++digits) cursor.advance();
    return cursor.position();
  }
  const Cursor first = cursor;
  if (!cursor.is(letter) && !cursor.is_line_break()) cursor.advance();
  if (cursor.is(letter)) {
    cursor.skip(letter);
    return cursor.position();
  }
  cursor = first;
  if (cursor.is_byte(' ')) cursor.advance();
  if (cursor.is(other)) {
    cursor.skip(other);
    while (cursor.is_line_break()) cursor.advance();
    return cursor.position();
  }
  return space_end(first, true);
}

// The class of the character that ends at `position` > 0, which begins one.
CharacterClass class_before(std::string_view text, size_t position) {
  for (size_t length = 1; length <= 4 && length <= position; ++length) {
    const Character character = character_at(text, position - length);
    if (character.valid && character.length == length) return class_of(character.code);
  }
  return other;
}

}  // namespace

size_t word_end(SplitPattern pattern, std::string_view text, size_t begin) {
  switch (pattern) {
    case SplitPattern::gpt2:
      return gpt2_end(text, begin);
    case SplitPattern::llama3:
      return llama3_end(text, begin);
    case SplitPattern::none:
      break;
  }
  return text.size();
}

bool is_safe_cut(SplitPattern pattern, std::string_view text, size_t position) {
  if (pattern == SplitPattern::none || position == 0 || position >= text.size()) return false;
  const char next = text[position];
  if ((static_cast<uint8_t>(next) & 0xc0U) == 0x80) return false;  // perhaps within a character
  if (text.size() - position <= incomplete_tail(text)) return false;
  const CharacterClass before = class_before(text, position);
  const CharacterClass after = class_of(character_at(text, position).code);
  // Letters and numbers end the words they are in. Of the others, only line breaks may be taken along.
  if (before == letter || before == number) return before != after;
  const bool line_break = next == '\r' || next == '\n';
  return before == other && after == space && !(pattern == SplitPattern::llama3 && line_break);
}

size_t last_safe_cut(SplitPattern pattern, std::string_view text) {
  if (pattern == SplitPattern::none || text.empty()) return 0;
  size_t position = text.size() - 1;
  while (position > 0 && !is_safe_cut(pattern, text, position)) --position;
  return position;
}

}  // namespace athanor
