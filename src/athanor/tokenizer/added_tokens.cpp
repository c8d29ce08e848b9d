#include "athanor/tokenizer/added_tokens.h"

#include <algorithm>

#include "athanor/tokenizer/unicode.h"

namespace athanor {

void AddedTokenMatcher::add(std::string_view content, int32_t id, bool left_strip, bool right_strip) {
  uint32_t node = 0;
  for (const char c : content) {
    const auto [place, is_new] =
        nodes_[node].next.try_emplace(static_cast<uint8_t>(c), static_cast<uint32_t>(nodes_.size()));
    const uint32_t next = place->second;
    if (is_new) nodes_.emplace_back();
    node = next;
  }
  nodes_[node].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back({id, left_strip, right_strip});
  begins_[static_cast<uint8_t>(content[0])] = true;
  longest_ = std::max(longest_, content.size());
}

std::optional<std::pair<size_t, size_t>> AddedTokenMatcher::longest_at(std::string_view text,
                                                                       size_t position) const {
  std::optional<std::pair<size_t, size_t>> found;
  const Node* node = &nodes_[0];
  for (size_t end = position; end < text.size();) {
    const auto next = node->next.find(static_cast<uint8_t>(text[end]));
    if (next == node->next.end()) break;
    node = &nodes_[next->second];
    ++end;
    if (node->token >= 0) found = {static_cast<size_t>(node->token), end};
  }
  return found;
}

std::optional<AddedTokenMatcher::Match> AddedTokenMatcher::find(std::string_view text, size_t from) const {
  if (empty()) return std::nullopt;
  for (size_t position = from; position < text.size(); ++position) {
    if (!begins_[static_cast<uint8_t>(text[position])]) continue;
    const auto found = longest_at(text, position);
    if (!found) continue;
    const Token& token = tokens_[found->first];
    Match match{position, found->second, token.id};
    while (token.left_strip && match.begin > from) {
      size_t length = 1;
      while (length < 4 && length < match.begin - from && (text[match.begin - length] & 0xc0) == 0x80)
        ++length;
      const Character character = character_at(text.substr(0, match.begin), match.begin - length);
      if (character.length != length || class_of(character.code) != CharacterClass::space) break;
      match.begin -= length;
    }
    while (token.right_strip && match.end < text.size()) {
      const Character character = character_at(text, match.end);
      if (class_of(character.code) != CharacterClass::space) break;
      match.end += character.length;
    }
    return match;
  }
  return std::nullopt;
}

bool AddedTokenMatcher::touches(std::string_view text, size_t position) const {
  for (size_t begin = position - std::min(position, longest_); begin <= position && begin < text.size();
       ++begin) {
    // A shorter one that begins here and does not reach counts for nothing, so the longest decides.
    const auto found = longest_at(text, begin);
    if (found && found->second >= position) return true;
  }
  return false;
}

}  // namespace athanor
