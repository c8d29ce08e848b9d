#include "athanor/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/tokenizer/added_tokens.h"
#include "athanor/tokenizer/byte_pair_encoder.h"
#include "athanor/tokenizer/unicode.h"

namespace athanor {
namespace {

constexpr uint8_t has_token = 1, special_token = 2, byte_fallback_token = 4;

// No merge crosses the beginning of a run of spaces if no token has one after something else.
bool tokens_begin_with_spaces(const std::vector<TokenMerge>& merges, const std::vector<std::string>& tokens) {
  return std::all_of(merges.begin(), merges.end(), [&](const TokenMerge& merge) {
    const std::string_view token = tokens[static_cast<size_t>(merge.result)];
    size_t from = 0;
    while (token.substr(from).starts_with(space_mark)) from += space_mark.size();
    return token.find(space_mark, from) == std::string_view::npos;
  });
}

[[noreturn]] void refuse(std::string what) {
  throw_user_error(std::move(what), "the file of the tokenizer is damaged, or was put together wrongly");
}

// Calls found(match) and between(begin, end) for what lies between, in order.
template <class Found, class Between>
void split_at_tokens(const AddedTokenMatcher& matcher, std::string_view text, Found&& found,
                     Between&& between) {
  size_t from = 0;
  while (const auto match = matcher.find(text, from)) {
    if (match->begin > from) between(from, match->begin);
    found(match->id);
    from = match->end;
  }
  if (from < text.size()) between(from, text.size());
}

}  // namespace

Tokenizer::Tokenizer(TokenizerDefinition definition) : definition_(std::move(definition)) {
  check_definition();
  encoder_ = std::make_unique<BytePairEncoder>(definition_);
  if (definition_.form == TextForm::characters) {
    space_begins_word_ = tokens_begin_with_spaces(definition_.merges, definition_.tokens);
  }
  add_token_bytes();
  add_matchers();
  identity_ = checksum();
}

Tokenizer::~Tokenizer() = default;

void Tokenizer::check_definition() const {
  const std::vector<std::string>& tokens = definition_.tokens;
  const size_t ids = tokens.size() + definition_.added_tokens.size();
  if (ids == 0 || ids > size_t{1} << 30) refuse(fmt::format("a tokenizer of {} tokens", ids));
  std::unordered_set<std::string_view> contents;
  for (size_t id = 0; id < tokens.size(); ++id) {
    if (!tokens[id].empty() && !contents.insert(tokens[id]).second) {
      refuse(fmt::format("the tokenizer has its token {} twice", id));
    }
  }
  const auto is_token = [&](int32_t id) {
    return id >= 0 && static_cast<size_t>(id) < tokens.size() && !tokens[static_cast<size_t>(id)].empty();
  };
  for (size_t rank = 0; rank < definition_.merges.size(); ++rank) {
    const TokenMerge& merge = definition_.merges[rank];
    if (!is_token(merge.left) || !is_token(merge.right) || !is_token(merge.result)) {
      refuse(fmt::format("merge {} of the tokenizer is of tokens that it does not have", rank));
    }
    if (tokens[static_cast<size_t>(merge.left)] + tokens[static_cast<size_t>(merge.right)] !=
        tokens[static_cast<size_t>(merge.result)]) {
      refuse(fmt::format("merge {} of the tokenizer does not give the token {}", rank, merge.result));
    }
  }
  std::unordered_set<std::string_view> added_contents;
  std::unordered_set<int32_t> added_ids;
  for (const AddedToken& added : definition_.added_tokens) {
    if (added.content.empty() || added.content.size() > AddedTokenMatcher::longest_content) {
      refuse(fmt::format("added token {} of the tokenizer has {} bytes, not 1 to {}", added.id,
                         added.content.size(), AddedTokenMatcher::longest_content));
    }
    // Gaps are allowed, but not so that one number decides how much memory is taken.
    if (added.id < 0 || static_cast<size_t>(added.id) >= 2 * ids + 1024) {
      refuse(fmt::format("an added token of the tokenizer has the id {}, which is out of range", added.id));
    }
    if (!added_contents.insert(added.content).second || !added_ids.insert(added.id).second) {
      refuse(fmt::format("the tokenizer has its added token {} twice", added.id));
    }
  }
  for (const auto& named : {definition_.beginning_of_text, definition_.end_of_text}) {
    const bool found =
        !named || std::any_of(definition_.added_tokens.begin(), definition_.added_tokens.end(),
                              [&](const auto& added) { return added.id == *named && added.special; });
    if (!found) refuse(fmt::format("beginning or end of text ({}) is no special token", *named));
  }
}

void Tokenizer::add_token_bytes() {
  size_t size = definition_.tokens.size();
  for (const AddedToken& added : definition_.added_tokens) {
    size = std::max(size, static_cast<size_t>(added.id) + 1);
  }
  flags_.assign(size, 0);
  std::unordered_map<size_t, const AddedToken*> added_tokens;
  for (const AddedToken& added : definition_.added_tokens) {
    added_tokens.emplace(static_cast<size_t>(added.id), &added);
    if (added.special) flags_[static_cast<size_t>(added.id)] |= special_token;
  }
  std::unordered_map<size_t, uint8_t> byte_tokens;
  for (size_t byte = 0; byte < 256; ++byte) {
    const auto id = static_cast<size_t>(encoder_->byte_ids()[byte]);
    byte_tokens.emplace(id, static_cast<uint8_t>(byte));
    if (definition_.form == TextForm::characters || byte >= 0x80) flags_[id] |= byte_fallback_token;
  }
  token_begins_.reserve(size + 1);
  for (size_t id = 0; id < size; ++id) {
    token_begins_.push_back(bytes_.size());
    const auto added = added_tokens.find(id);
    if (added != added_tokens.end()) {
      // Where it is found with the space in front of it, it stands for that too.
      const bool with_space = added->second->normalized && definition_.added_in_marked_text &&
                              definition_.prefix == SpacePrefix::always;
      if (with_space) bytes_ += ' ';
      bytes_ += added->second->content;
    } else if (const auto byte = byte_tokens.find(id); byte != byte_tokens.end()) {
      bytes_ += static_cast<char>(byte->second);
    } else if (id < definition_.tokens.size()) {
      std::string_view token = definition_.tokens[id];
      while (definition_.form == TextForm::characters) {
        const size_t mark = token.find(space_mark);
        if (mark == std::string_view::npos) break;
        bytes_ += token.substr(0, mark);
        bytes_ += ' ';
        token.remove_prefix(mark + space_mark.size());
      }
      bytes_ += token;
    }
    if (bytes_.size() > token_begins_.back()) flags_[id] |= has_token;
  }
  token_begins_.push_back(bytes_.size());
}

void Tokenizer::add_matchers() {
  for (const bool normalized : {false, true}) {
    for (const bool special : {false, true}) {
      auto matcher = std::make_unique<AddedTokenMatcher>();
      for (const AddedToken& added : definition_.added_tokens) {
        if (added.normalized != normalized || (added.special && !special)) continue;
        const bool in_marked = normalized && definition_.added_in_marked_text;
        const std::string content = in_marked ? marked(added.content, {true, false}) : added.content;
        matcher->add(content, added.id, added.left_strip, added.right_strip);
      }
      matchers_[normalized][special] = std::move(matcher);
    }
  }
}

uint32_t Tokenizer::checksum() const {
  Crc32c sum;
  const auto number = [&](uint64_t value) { sum.update(std::as_bytes(std::span(&value, 1))); };
  const auto text = [&](std::string_view value) {
    number(value.size());
    sum.update(value);
  };
  number(static_cast<uint64_t>(definition_.form));
  number(definition_.form == TextForm::bytes ? static_cast<uint64_t>(definition_.pattern) : 0);
  number(static_cast<uint64_t>(definition_.prefix));
  number((definition_.word_at_each_space ? 1U : 0U) | (definition_.added_in_marked_text ? 2U : 0U) |
         (definition_.whole_words_first ? 4U : 0U));
  number(definition_.tokens.size());
  for (const std::string& token : definition_.tokens) text(token);
  number(definition_.merges.size());
  for (const TokenMerge& merge : definition_.merges) {
    number(static_cast<uint32_t>(merge.left));
    number(static_cast<uint32_t>(merge.right));
  }
  std::vector<const AddedToken*> added_tokens;
  for (const AddedToken& added : definition_.added_tokens) added_tokens.push_back(&added);
  std::sort(added_tokens.begin(), added_tokens.end(), [](auto* a, auto* b) { return a->id < b->id; });
  for (const AddedToken* added : added_tokens) {
    number(static_cast<uint32_t>(added->id));
    text(added->content);
    number((added->special ? 1U : 0U) | (added->left_strip ? 2U : 0U) | (added->right_strip ? 4U : 0U) |
           (added->normalized ? 8U : 0U));
  }
  for (const auto& named : {definition_.beginning_of_text, definition_.end_of_text}) {
    number(named ? static_cast<uint64_t>(*named) + 1 : 0);
  }
  return sum.value();
}

bool Tokenizer::needs_prefix(std::string_view stretch, Place place) const {
  if (stretch.empty() || (place.at_beginning && place.continuation)) return false;
  const bool has_space =
      stretch[0] == ' ' || (definition_.form == TextForm::characters && stretch.starts_with(space_mark));
  switch (definition_.prefix) {
    case SpacePrefix::none:
      break;
    case SpacePrefix::always:
      return true;
    case SpacePrefix::unless_space:
      return !has_space;
    case SpacePrefix::first_unless_space:
      return place.at_beginning && !has_space;
  }
  return false;
}

std::string Tokenizer::marked(std::string_view stretch, Place place) const {
  std::string text;
  text.reserve(stretch.size() + stretch.size() / 2);
  if (needs_prefix(stretch, place)) text += space_mark;
  for (size_t begin = 0; begin < stretch.size();) {
    const size_t space = std::min(stretch.find(' ', begin), stretch.size());
    text += stretch.substr(begin, space - begin);
    if (space < stretch.size()) text += space_mark;
    begin = space + 1;
  }
  return text;
}

void Tokenizer::encode(std::string_view text, std::vector<int32_t>& ids, const EncodeOptions& options) const {
  split_at_tokens(
      *matchers_[false][options.special_tokens], text, [&](int32_t id) { ids.push_back(id); },
      [&](size_t begin, size_t end) {
        encode_stretch(text.substr(begin, end - begin), {begin == 0, options.continuation},
                       options.special_tokens, ids);
      });
}

void Tokenizer::encode_stretch(std::string_view stretch, Place place, bool special,
                               std::vector<int32_t>& ids) const {
  const AddedTokenMatcher& matcher = *matchers_[true][special];
  if (matcher.empty()) return encode_plain(stretch, place, ids);
  const auto found = [&](int32_t id) { ids.push_back(id); };
  if (definition_.added_in_marked_text) {
    const std::string text = marked(stretch, place);
    return split_at_tokens(matcher, text, found, [&](size_t begin, size_t end) {
      encode_marked(std::string_view(text).substr(begin, end - begin), ids);
    });
  }
  split_at_tokens(matcher, stretch, found, [&](size_t begin, size_t end) {
    encode_plain(stretch.substr(begin, end - begin), {place.at_beginning && begin == 0, place.continuation},
                 ids);
  });
}

void Tokenizer::encode_plain(std::string_view stretch, Place place, std::vector<int32_t>& ids) const {
  if (definition_.form == TextForm::characters) return encode_marked(marked(stretch, place), ids);
  if (needs_prefix(stretch, place)) {
    std::string text(1, ' ');
    text += stretch;
    return encoder_->append(text, BytePairEncoder::Words::pattern, ids);
  }
  encoder_->append(stretch, BytePairEncoder::Words::pattern, ids);
}

void Tokenizer::encode_marked(std::string_view text, std::vector<int32_t>& ids) const {
  encoder_->append(text,
                   definition_.word_at_each_space ? BytePairEncoder::Words::space
                   : space_begins_word_           ? BytePairEncoder::Words::space_run
                                                  : BytePairEncoder::Words::whole,
                   ids);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  encode(text, ids, options);
  return ids;
}

// Whether the words of the text before and after are those of the whole, whatever follows.
bool Tokenizer::is_safe_place(std::string_view text, size_t position) const {
  if (definition_.form == TextForm::bytes) {
    if (definition_.merges.empty() && !definition_.whole_words_first) return true;
    return is_safe_cut(definition_.pattern, text, position);
  }
  if (position >= text.size() || !(definition_.word_at_each_space || space_begins_word_)) return false;
  const std::string_view before = text.substr(0, position);
  return text[position] == ' ' &&
         (definition_.word_at_each_space || !(before.ends_with(' ') || before.ends_with(space_mark)));
}

size_t Tokenizer::last_safe_cut(std::string_view text, const EncodeOptions& options) const {
  const AddedTokenMatcher& first = *matchers_[false][options.special_tokens];
  const AddedTokenMatcher& second = *matchers_[true][options.special_tokens];
  if (definition_.added_in_marked_text && !second.empty()) return 0;  // contents are not what the text says
  const size_t longest = std::max(first.longest(), second.longest());
  if (text.size() <= longest) return 0;
  for (size_t position = text.size() - longest; position > 0; --position) {
    if (is_safe_place(text, position) && !first.touches(text, position) && !second.touches(text, position)) {
      return position;
    }
  }
  return 0;
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  const auto place = static_cast<size_t>(id);
  if (id < 0 || place >= flags_.size() || (flags_[place] & has_token) == 0) {
    throw_user_error(
        fmt::format("the tokenizer has no token with the id {}; it has {}", id, vocabulary_size()),
        "the ids were made with another tokenizer");
  }
  return std::string_view(bytes_).substr(token_begins_[place],
                                         token_begins_[place + 1] - token_begins_[place]);
}

bool Tokenizer::is_special(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < flags_.size() &&
         (flags_[static_cast<size_t>(id)] & special_token) != 0;
}

bool Tokenizer::is_byte_fallback(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < flags_.size() &&
         (flags_[static_cast<size_t>(id)] & byte_fallback_token) != 0;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, const DecodeOptions& options) const {
  std::string text;
  for (const int32_t id : ids) {
    const std::string_view bytes = token_bytes(id);
    if (options.special_tokens || !is_special(id)) text += bytes;
  }
  if (definition_.strip_first_space && !options.continuation && text.starts_with(' ')) text.erase(0, 1);
  return text;
}

}  // namespace athanor
