// A table of pairs with their counts and nothing else, in memory of a known size: for counting more pairs
// than an index could hold.
//
// Called by index_selection.h. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "athanor/tokenizer/pair_index.h"

namespace athanor {

class PairCounts {
 public:
  struct Entry {
    PairKey key = no_key;
    int64_t count = 0;
    uint32_t last_block = std::numeric_limits<uint32_t>::max();
    uint32_t blocks = 0;  // that hold the pair
  };

  // At least `least_slots` are there, whatever the limit.
  explicit PairCounts(int64_t memory_bytes)
      : most_slots_(static_cast<size_t>(memory_bytes) / sizeof(Entry)), slots_(least_slots) {}

  // One occurrence, weighted with `count`; blocks come in any order, each in one go. False, and nothing is
  // done, if the pair is new and there is no room.
  bool add(PairKey key, int64_t count, uint32_t block) {
    Entry* entry = find_or_add(key);
    if (entry == nullptr) return false;
    entry->count += count;
    entry->blocks += entry->last_block != block ? 1 : 0;
    entry->last_block = block;
    return true;
  }

  // What another table has counted in other blocks.
  bool add(const Entry& other) {
    Entry* entry = find_or_add(other.key);
    if (entry == nullptr) return false;
    entry->count += other.count;
    entry->blocks += other.blocks;
    return true;
  }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (const Entry& entry : slots_) {
      if (entry.key != no_key) visit(entry);
    }
  }

 private:
  static constexpr PairKey no_key = ~PairKey{0};  // ids are below 2^24
  static constexpr size_t least_slots = 256;

  Entry* find_or_add(PairKey key) {
    size_t slot = place_of(key);
    if (slots_[slot].key == key) return &slots_[slot];
    // The old table and one twice as large exist together while it grows.
    if (used_ >= slots_.size() / 8 * 6) {
      if (slots_.size() * 3 > most_slots_) return nullptr;
      grow();
      slot = place_of(key);
    }
    ++used_;
    slots_[slot].key = key;
    return &slots_[slot];
  }

  // Where the pair is, or the free slot for it.
  size_t place_of(PairKey key) const {
    const size_t mask = slots_.size() - 1;
    size_t slot = hash_pair(key) & mask;
    while (slots_[slot].key != key && slots_[slot].key != no_key) slot = (slot + 1) & mask;
    return slot;
  }

  void grow() {
    std::vector<Entry> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Entry& entry : old) {
      if (entry.key != no_key) slots_[place_of(entry.key)] = entry;
    }
  }

  size_t most_slots_;
  std::vector<Entry> slots_;  // a power of two
  size_t used_ = 0;
};

}  // namespace athanor
