#include "athanor/tokenizer/pair_index.h"

#include <algorithm>

namespace athanor {

void PairIndex::clear() {
  slots_ = std::vector<uint32_t>(1024);
  pairs_ = {};
  heap_ = {};
  block_entries_ = 0;
}

PairIndex::Pair* PairIndex::find(PairKey key) {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_pair(key) & mask;; slot = (slot + 1) & mask) {
    const uint32_t index = slots_[slot];
    if (index == 0) return nullptr;
    if (pairs_[index - 1].key == key) return &pairs_[index - 1];
  }
}

PairIndex::Pair& PairIndex::find_or_add(PairKey key) {
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash_pair(key) & mask;; slot = (slot + 1) & mask) {
    const uint32_t index = slots_[slot];
    if (index == 0) {
      pairs_.push_back({key, 0, {}});
      slots_[slot] = static_cast<uint32_t>(pairs_.size());
      if (pairs_.size() * 2 > slots_.size()) grow();
      return pairs_.back();
    }
    if (pairs_[index - 1].key == key) return pairs_[index - 1];
  }
}

void PairIndex::grow() {
  slots_ = std::vector<uint32_t>(slots_.size() * 2);
  const size_t mask = slots_.size() - 1;
  for (size_t index = 0; index < pairs_.size(); ++index) {
    size_t slot = hash_pair(pairs_[index].key) & mask;
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<uint32_t>(index + 1);
  }
}

void PairIndex::add_blocks(Pair& pair, const std::vector<uint32_t>& blocks) {
  const size_t capacity = pair.blocks.capacity();
  if (pair.blocks.empty()) {
    pair.blocks = blocks;  // of just the size
  } else {
    pair.blocks.insert(pair.blocks.end(), blocks.begin(), blocks.end());
  }
  block_entries_ += static_cast<int64_t>(pair.blocks.capacity()) - static_cast<int64_t>(capacity);
}

void PairIndex::resize_blocks(Pair& pair, size_t blocks) {
  const size_t capacity = pair.blocks.capacity();
  pair.blocks.resize(blocks);
  block_entries_ += static_cast<int64_t>(pair.blocks.capacity()) - static_cast<int64_t>(capacity);
}

std::vector<uint32_t> PairIndex::take_blocks(Pair& pair) {
  block_entries_ -= static_cast<int64_t>(pair.blocks.capacity());
  return std::exchange(pair.blocks, {});
}

void PairIndex::push_all() {
  heap_ = {};
  heap_.reserve(pairs_.size());
  for (const Pair& pair : pairs_) {
    if (pair.count > 0) heap_.push_back(rank_of(pair));
  }
  std::make_heap(heap_.begin(), heap_.end());
}

void PairIndex::push(PairRank rank) {
  heap_.push_back(rank);
  std::push_heap(heap_.begin(), heap_.end());
}

PairIndex::Pair* PairIndex::top() {
  while (!heap_.empty()) {
    const PairRank rank = heap_.front();
    Pair* pair = find(rank.key);
    const int64_t count = pair == nullptr ? 0 : pair->count;
    if (count == rank.count) return pair;
    pop();
    // Counts that fell are put right when they come up; one that rose has a newer entry.
    if (count > 0 && count < rank.count) push(PairRank{count, rank.key});
  }
  return nullptr;
}

void PairIndex::pop() {
  std::pop_heap(heap_.begin(), heap_.end());
  heap_.pop_back();
}

int64_t PairIndex::pair_bytes() const {
  const auto most = static_cast<int64_t>(std::max(pairs_.size(), heap_.size()));
  return most * bytes_per_pair;
}

}  // namespace athanor
