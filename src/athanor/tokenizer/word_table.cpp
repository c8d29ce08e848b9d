#include "athanor/tokenizer/word_table.h"

#include <algorithm>
#include <limits>

#include "athanor/base/error.h"

namespace athanor {

void WordTable::clear() {
  slots_ = std::vector<Slot>(1024);
  entries_ = decltype(entries_)();
  texts_ = decltype(texts_)();
  text_used_ = text_piece;
  words_ = bytes_ = 0;
}

bool WordTable::insert(std::string_view word, uint64_t count, uint64_t hash, size_t slot,
                       int64_t memory_limit) {
  ATHANOR_ASSERT(static_cast<int64_t>(word.size()) <= longest_word);
  const auto number = static_cast<size_t>(words_);
  const bool more_slots = (number + 1) * 2 > slots_.size();
  const bool more_entries = number == entries_.size() * entries_a_piece;
  const bool more_text = text_used_ + word.size() > text_piece;
  const size_t growth = (more_slots ? 2 * slots_.size() * sizeof(Slot) : 0) +
                        (more_entries ? entries_a_piece * sizeof(Entry) : 0) + (more_text ? text_piece : 0) +
                        sizeof(Sorted);
  if (number >= std::numeric_limits<uint32_t>::max() - 1 ||
      memory_bytes() + static_cast<int64_t>(growth) > memory_limit) {
    return false;
  }
  if (more_entries) entries_.push_back(std::make_unique_for_overwrite<Entry[]>(entries_a_piece));
  if (more_text) {
    texts_.push_back(std::make_unique_for_overwrite<char[]>(text_piece));
    text_used_ = 0;
  }
  std::memcpy(texts_.back().get() + text_used_, word.data(), word.size());
  entry_at(number) = {count, (texts_.size() - 1) * text_piece + text_used_,
                      static_cast<uint32_t>(word.size())};
  text_used_ += word.size();
  slots_[slot] = {static_cast<uint32_t>(hash >> 32), static_cast<uint32_t>(number + 1)};
  ++words_;
  bytes_ += static_cast<int64_t>(word.size());
  if (more_slots) grow();
  return true;
}

void WordTable::grow() {
  slots_ = {};
  size_t size = 1024;
  while (size < static_cast<size_t>(words_) * 4) size *= 2;
  slots_.resize(size);
  for (size_t number = 0; number < static_cast<size_t>(words_); ++number) {
    const uint64_t full = hash(text_of(entry_at(number)));
    size_t slot = full & (size - 1);
    while (slots_[slot].number != 0) slot = (slot + 1) & (size - 1);
    slots_[slot] = {static_cast<uint32_t>(full >> 32), static_cast<uint32_t>(number + 1)};
  }
}

std::vector<WordTable::Sorted> WordTable::sorted() const {
  std::vector<Sorted> words(static_cast<size_t>(words_));
  for (size_t number = 0; number < words.size(); ++number) {
    const std::string_view text = text_of(entry_at(number));
    // As a big-endian number, zeros behind short words, so that comparing numbers compares bytes.
    for (size_t i = 0; i < 8; ++i) {
      words[number].prefix =
          words[number].prefix << 8 | (i < text.size() ? static_cast<uint8_t>(text[i]) : 0u);
    }
    words[number].number = static_cast<uint32_t>(number);
  }
  std::sort(words.begin(), words.end(), [this](const Sorted& a, const Sorted& b) {
    return a.prefix != b.prefix ? a.prefix < b.prefix : word(a) < word(b);
  });
  return words;
}

}  // namespace athanor
