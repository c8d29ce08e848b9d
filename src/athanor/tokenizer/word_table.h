// A table of words and their counts in memory of a known size.
//
// Called by word_counts.cpp. Thread safety: one thread; const functions from several.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace athanor {

class WordTable {
 public:
  static constexpr int64_t longest_word = 1 << 14;  // bytes

  WordTable() { clear(); }

  // False, and nothing is done, if the word is new and the table would take more than `memory_limit` bytes.
  // The word has at most `longest_word` bytes.
  bool add(std::string_view word, uint64_t count, int64_t memory_limit);

  void clear();  // gives the memory back
  int64_t words() const { return words_; }
  int64_t bytes() const { return bytes_; }  // of the words
  // What the table takes, and what sorted() will take.
  int64_t memory_bytes() const {
    return static_cast<int64_t>(slots_.size() * sizeof(Slot) +
                                entries_.size() * entries_a_piece * sizeof(Entry) +
                                texts_.size() * text_piece) +
           words_ * static_cast<int64_t>(sizeof(Sorted));
  }

  // visit(word, count), in the order in which words were added.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (int64_t i = 0; i < words_; ++i) {
      const Entry& entry = entry_at(static_cast<size_t>(i));
      visit(text_of(entry), entry.count);
    }
  }

  // The words in the order of their bytes, for word() and count().
  struct Sorted {
    uint64_t prefix = 0;  // the first bytes: most comparisons need no more
    uint32_t number = 0;
  };
  std::vector<Sorted> sorted() const;
  std::string_view word(const Sorted& sorted) const { return text_of(entry_at(sorted.number)); }
  uint64_t count(const Sorted& sorted) const { return entry_at(sorted.number).count; }

  static uint64_t hash(std::string_view word);

 private:
  struct Entry {
    uint64_t count;
    uint64_t place;  // piece of texts_, times text_piece, plus offset
    uint32_t length;
  };
  struct Slot {
    uint32_t hash;    // upper half
    uint32_t number;  // of the entry, plus 1; 0: free
  };
  // Pieces, so that growing copies nothing and is known beforehand.
  static constexpr size_t entries_a_piece = 1024, text_piece = size_t{1} << 16;
  static_assert(longest_word <= static_cast<int64_t>(text_piece));

  Entry& entry_at(size_t number) const {
    return entries_[number / entries_a_piece][number % entries_a_piece];
  }
  std::string_view text_of(const Entry& entry) const {
    return {texts_[entry.place / text_piece].get() + entry.place % text_piece, entry.length};
  }
  bool insert(std::string_view word, uint64_t count, uint64_t hash, size_t slot, int64_t memory_limit);
  void grow();

  std::vector<Slot> slots_;
  std::vector<std::unique_ptr<Entry[]>> entries_;
  std::vector<std::unique_ptr<char[]>> texts_;
  size_t text_used_ = text_piece;  // of the last piece
  int64_t words_ = 0, bytes_ = 0;
};

inline uint64_t WordTable::hash(std::string_view word) {
  const char* byte = word.data();
  size_t left = word.size();
  uint64_t state = left * 0x9e3779b97f4a7c15u;
  const auto mix = [&state](uint64_t value) {
    state = (state ^ value) * 0xd6e8feb86659fd93u;
    state ^= state >> 32;
  };
  for (; left >= 8; left -= 8, byte += 8) {
    uint64_t value = 0;
    std::memcpy(&value, byte, 8);
    mix(value);
  }
  uint64_t value = 0;
  std::memcpy(&value, byte, left);
  mix(value);
  return state * 0x9e3779b97f4a7c15u;
}

inline bool WordTable::add(std::string_view word, uint64_t count, int64_t memory_limit) {
  const uint64_t full = hash(word);
  const auto half = static_cast<uint32_t>(full >> 32);
  const size_t mask = slots_.size() - 1;
  size_t slot = full & mask;
  for (;; slot = (slot + 1) & mask) {
    const Slot& there = slots_[slot];
    if (there.number == 0) break;
    if (there.hash != half) continue;
    Entry& entry = entry_at(there.number - 1);
    if (entry.length == word.size() && std::memcmp(text_of(entry).data(), word.data(), word.size()) == 0) {
      entry.count += count;
      return true;
    }
  }
  return insert(word, count, full, slot, memory_limit);
}

}  // namespace athanor
