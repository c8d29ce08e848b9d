// Counts of pairs of neighbouring tokens, and for each pair the blocks of words that hold it.
//
// Called by merge_learner.cpp. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace athanor {

using PairKey = uint64_t;  // left id in the upper half, right id in the lower

constexpr PairKey pair_key(uint32_t left, uint32_t right) {
  return static_cast<PairKey>(left) << 32 | right;
}

// Spreads keys over all 64 bits.
constexpr uint64_t hash_pair(PairKey key) {
  const uint64_t product = (key ^ (key >> 29)) * 0x9e3779b97f4a7c15u;
  return product ^ (product >> 32);
}

// The order in which pairs are merged: a lesser one comes later.
struct PairRank {
  int64_t count = 0;
  PairKey key = 0;
  bool operator<(const PairRank& other) const {
    return count != other.count ? count < other.count : key > other.key;
  }
};

class PairIndex {
 public:
  struct Pair {
    PairKey key = 0;
    int64_t count = 0;
    std::vector<uint32_t> blocks;  // that held it when they were added; may name one twice
  };

  static PairRank rank_of(const Pair& pair) { return {pair.count, pair.key}; }

  PairIndex() { clear(); }

  void clear();  // gives the memory back
  Pair* find(PairKey key);
  Pair& find_or_add(PairKey key);  // valid until the next is added
  std::vector<Pair>& pairs() { return pairs_; }

  // Replaces or extends the blocks of a pair, which the accounting follows.
  void add_blocks(Pair& pair, const std::vector<uint32_t>& blocks);
  void append_block(Pair& pair, uint32_t block) {
    const size_t capacity = pair.blocks.capacity();
    pair.blocks.push_back(block);
    block_entries_ += static_cast<int64_t>(pair.blocks.capacity() - capacity);
  }
  void resize_blocks(Pair& pair, size_t blocks);
  std::vector<uint32_t> take_blocks(Pair& pair);

  // The pair of the greatest rank; pairs enter the order with `push` whenever their count is new or has
  // grown.
  void push(const Pair& pair) { push(rank_of(pair)); }
  void push_all();
  // Drops entries that are out of date until the top is true; null if no pair with a count above 0 is left.
  Pair* top();
  void pop();

  // Bytes in use for pairs and the order among them, and for lists of blocks.
  int64_t pair_bytes() const;
  int64_t block_bytes() const { return block_entries_ * bytes_per_entry; }
  // What one pair costs, spare room of growing tables and its list's header included.
  static constexpr int64_t bytes_per_pair = 128;
  static constexpr int64_t bytes_per_entry = sizeof(uint32_t);

 private:
  void push(PairRank rank);
  void grow();

  std::vector<uint32_t> slots_;  // index into pairs_ plus 1; 0: free
  std::vector<Pair> pairs_;
  std::vector<PairRank> heap_;
  int64_t block_entries_ = 0;  // that the lists have room for
};

}  // namespace athanor
