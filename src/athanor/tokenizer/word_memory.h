// Remembers the ids of short words. Fixed size: a new word takes the place of an old one.
//
// Called by BytePairEncoder. Thread safety: one thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace athanor {

// A word of up to 8 * parts - 1 bytes; the last byte holds its length.
template <size_t parts>
using WordKey = std::array<uint64_t, parts>;

// `readable` bytes from the word's first on may be read.
template <size_t parts>
WordKey<parts> key_of(std::string_view word, size_t readable) {
  static_assert(std::endian::native == std::endian::little);
  constexpr size_t bytes = 8 * parts;
  WordKey<parts> key{};
  if (readable >= bytes) {  // a copy of known size is one instruction
    std::memcpy(key.data(), word.data(), bytes);
    for (size_t i = 0; i < parts; ++i) {
      const size_t kept = word.size() > 8 * i ? std::min<size_t>(word.size() - 8 * i, 8) : 0;
      if (kept < 8) key[i] &= (uint64_t{1} << 8 * kept) - 1;
    }
  } else {
    std::memcpy(key.data(), word.data(), word.size());
  }
  key[parts - 1] |= uint64_t{word.size()} << 56;
  return key;
}

// Words of up to 8 * parts - 1 bytes that have up to `most_ids` ids.
template <size_t parts, size_t most_ids>
class WordMemory {
 public:
  static constexpr size_t longest_word = 8 * parts - 1;
  using Key = WordKey<parts>;
  struct Slot {
    Key key{};  // 0: none, since no word is empty
    uint32_t count = 0;
    std::array<int32_t, most_ids> ids{};
  };

  explicit WordMemory(int log2_pairs) : shift_(64 - log2_pairs), pairs_(size_t{1} << log2_pairs) {}

  // Null if the word is not known.
  const Slot* find(const Key& key) const {
    const Pair& pair = pairs_[place_of(key)];
    if (pair[0].key == key) return &pair[0];
    if (pair[1].key == key) return &pair[1];
    return nullptr;
  }

  void remember(const Key& key, std::span<const int32_t> ids) {
    if (ids.size() > most_ids) return;
    Pair& pair = pairs_[place_of(key)];
    pair[1] = pair[0];  // the older of two goes
    pair[0].key = key;
    pair[0].count = static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), pair[0].ids.begin());
  }

 private:
  using Pair = std::array<Slot, 2>;

  size_t place_of(const Key& key) const {
    uint64_t hash = 0;
    for (const uint64_t part : key) hash = (std::rotl(hash, 29) ^ part) * 0x9e3779b97f4a7c15U;
    return static_cast<size_t>((hash ^ hash >> 32) * 0xd6e8feb86659fd93U >> shift_);
  }

  int shift_;
  std::vector<Pair> pairs_;
};

}  // namespace athanor
