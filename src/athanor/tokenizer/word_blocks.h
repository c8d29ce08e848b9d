// Words as rows of token ids in one array, in blocks of words that have one count.
//
// Called by merge_learner.cpp. A block is the unit that an index of pairs points to: one word where memory is
// plentiful, many words where it is not. `Symbol` is uint16_t or uint32_t; its greatest value ends a word.
// Thread safety: different blocks may be read and changed from different threads.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <unordered_map>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/tokenizer/merge_learner.h"

namespace athanor {

// What one merge does to the pairs on either side: for each neighbour of the merged pair, how often it stood
// there and in which blocks.
class MergeNeighbours {
 public:
  struct Side {
    int64_t count = 0;
    std::vector<uint32_t> blocks;
  };

  explicit MergeNeighbours(int64_t vocabulary)
      : before_(static_cast<size_t>(vocabulary)), after_(static_cast<size_t>(vocabulary)) {}

  void add_before(uint32_t neighbour, int64_t count, uint32_t block) {
    add(before_[neighbour], neighbour, before_touched_, count, block);
  }
  void add_after(uint32_t neighbour, int64_t count, uint32_t block) {
    add(after_[neighbour], neighbour, after_touched_, count, block);
  }
  // The neighbour is another occurrence of the merged pair.
  void add_between(int64_t count, uint32_t block) {
    between_.count += count;
    if (between_.blocks.empty() || between_.blocks.back() != block) between_.blocks.push_back(block);
  }

  const Side& between() const { return between_; }
  // visit(neighbour, side)
  template <typename Visit>
  void for_each_before(Visit&& visit) const {
    for (const uint32_t neighbour : before_touched_) visit(neighbour, before_[neighbour]);
  }
  template <typename Visit>
  void for_each_after(Visit&& visit) const {
    for (const uint32_t neighbour : after_touched_) visit(neighbour, after_[neighbour]);
  }

  void add_all(const MergeNeighbours& other) {
    other.for_each_before([&](uint32_t neighbour, const Side& side) {
      add_side(before_[neighbour], neighbour, before_touched_, side);
    });
    other.for_each_after([&](uint32_t neighbour, const Side& side) {
      add_side(after_[neighbour], neighbour, after_touched_, side);
    });
    between_.count += other.between_.count;
    between_.blocks.insert(between_.blocks.end(), other.between_.blocks.begin(), other.between_.blocks.end());
  }

  void clear() {
    for (const uint32_t neighbour : before_touched_) reset(before_[neighbour]);
    for (const uint32_t neighbour : after_touched_) reset(after_[neighbour]);
    before_touched_.clear();
    after_touched_.clear();
    reset(between_);
  }

  static int64_t bytes(int64_t vocabulary) {
    return 2 * vocabulary * static_cast<int64_t>(sizeof(Side) + kept_blocks * sizeof(uint32_t));
  }

 private:
  static constexpr size_t kept_blocks = 16;  // room that a list keeps for the next merge

  static void add(Side& side, uint32_t neighbour, std::vector<uint32_t>& touched, int64_t count,
                  uint32_t block) {
    if (side.blocks.empty()) touched.push_back(neighbour);
    side.count += count;
    if (side.blocks.empty() || side.blocks.back() != block) side.blocks.push_back(block);
  }
  static void add_side(Side& side, uint32_t neighbour, std::vector<uint32_t>& touched, const Side& other) {
    if (side.blocks.empty()) touched.push_back(neighbour);
    side.count += other.count;
    side.blocks.insert(side.blocks.end(), other.blocks.begin(), other.blocks.end());
  }
  static void reset(Side& side) {
    side.count = 0;
    if (side.blocks.capacity() > kept_blocks) {
      side.blocks = {};
    } else {
      side.blocks.clear();
    }
  }

  std::vector<Side> before_, after_;  // by neighbour
  std::vector<uint32_t> before_touched_, after_touched_;
  Side between_;
};

template <typename Symbol>
class WordBlocks {
 public:
  static constexpr Symbol end_of_word = std::numeric_limits<Symbol>::max();

  // Reads the words twice; those of one byte have no pair and are left out. A block holds one word, or as
  // many as reach `block_symbols` if that is above 0. The sum of count times length must be below 2^63.
  WordBlocks(const WordSource& words, const std::array<uint8_t, 256>& id_of_byte, int64_t block_symbols) {
    struct Group {
      uint64_t count;
      int64_t symbols, begin;
    };
    std::unordered_map<uint64_t, Group> groups;
    int64_t total = 0;
    words.for_each([&](std::string_view word, uint64_t count) {
      if (word.size() < 2 || count == 0) return;
      int64_t occurrences = 0;
      ATHANOR_ASSERT(word.size() < std::numeric_limits<uint32_t>::max() / 2);
      if (__builtin_mul_overflow(word.size(), count, &occurrences) ||
          __builtin_add_overflow(total, occurrences, &total)) {
        throw_user_error("the counts of the words exceed 2^63 bytes of text");
      }
      Group& group = groups.try_emplace(count, Group{count, 0, 0}).first->second;
      group.symbols += static_cast<int64_t>(word.size()) + 1;
    });
    std::vector<Group*> order;
    for (auto& [count, group] : groups) order.push_back(&group);
    std::sort(order.begin(), order.end(), [](const Group* a, const Group* b) { return a->count > b->count; });
    int64_t size = 0;
    for (Group* group : order) {
      group->begin = size;
      size += group->symbols;
    }
    symbols_.resize(static_cast<size_t>(size));
    words.for_each([&](std::string_view word, uint64_t count) {
      if (word.size() < 2 || count == 0) return;
      Symbol* out = symbols_.data() + groups.find(count)->second.begin;
      for (const char byte : word) *out++ = id_of_byte[static_cast<uint8_t>(byte)];
      *out = end_of_word;
      groups.find(count)->second.begin += static_cast<int64_t>(word.size()) + 1;
    });
    for (const Group* group : order) {
      add_blocks(group->begin - group->symbols, group->begin, static_cast<int64_t>(group->count),
                 block_symbols);
    }
  }

  int64_t blocks() const { return static_cast<int64_t>(blocks_.size()); }
  int64_t symbols() const { return static_cast<int64_t>(symbols_.size()); }
  int64_t bytes() const {
    return static_cast<int64_t>(symbols_.capacity() * sizeof(Symbol) + blocks_.capacity() * sizeof(Block));
  }
  static constexpr int64_t bytes_per_block = 24;

  // visit(left, right, count) for every pair of neighbours in a block, in order.
  template <typename Visit>
  void for_each_pair(uint32_t block, Visit&& visit) const {
    const Block& row = blocks_[block];
    const Symbol* symbol = symbols_.data() + row.begin;
    for (uint32_t i = 1; i < row.length; ++i) {
      if (symbol[i] != end_of_word && symbol[i - 1] != end_of_word) {
        visit(uint32_t{symbol[i - 1]}, uint32_t{symbol[i]}, row.count);
      }
    }
  }

  void prefetch(uint32_t block) const { __builtin_prefetch(&blocks_[block]); }
  void prefetch_symbols(uint32_t block) const { __builtin_prefetch(symbols_.data() + blocks_[block].begin); }

  // Replaces the pair by `result`, from left to right, and tells its neighbours.
  void replace(uint32_t block, uint32_t left, uint32_t right, uint32_t result, MergeNeighbours& neighbours) {
    Block& row = blocks_[block];
    Symbol* const symbol = symbols_.data() + row.begin;
    const uint32_t length = row.length;
    const auto a = static_cast<Symbol>(left);
    const auto b = static_cast<Symbol>(right);
    uint32_t read = 0;
    while (read + 1 < length && !(symbol[read] == a && symbol[read + 1] == b)) ++read;
    if (read + 1 >= length) return;
    uint32_t write = read;
    bool after_merge = false;  // the symbol written last is one of this call
    while (read < length) {
      if (symbol[read] != a || read + 1 >= length || symbol[read + 1] != b) {
        symbol[write++] = symbol[read++];
        after_merge = false;
        continue;
      }
      if (after_merge) {
        neighbours.add_between(row.count, block);
      } else if (write > 0 && symbol[write - 1] != end_of_word) {
        neighbours.add_before(symbol[write - 1], row.count, block);
      }
      symbol[write++] = static_cast<Symbol>(result);
      read += 2;
      after_merge = true;
      if (read >= length || symbol[read] == end_of_word) continue;
      const bool another = symbol[read] == a && read + 1 < length && symbol[read + 1] == b;
      if (!another) neighbours.add_after(symbol[read], row.count, block);
    }
    row.length = write;
  }

  // Joins neighbouring blocks of one count until each reaches `block_symbols`, which must not fall from call
  // to call, and leaves out words that have become one token.
  void regroup(int64_t block_symbols) {
    int64_t write = 0;
    size_t kept = 0;
    for (size_t index = 0; index < blocks_.size(); ++index) {
      const Block row = blocks_[index];
      const bool joins = kept > 0 && blocks_[kept - 1].count == row.count &&
                         int64_t{blocks_[kept - 1].length} < block_symbols;
      const int64_t begin = joins ? blocks_[kept - 1].begin : write;
      int64_t word = row.begin;
      const int64_t end = row.begin + row.length;
      while (word < end) {
        int64_t next = word;
        while (next < end && symbols_[static_cast<size_t>(next)] != end_of_word) ++next;
        if (next - word > 1) {
          while (word < next) symbols_[static_cast<size_t>(write++)] = symbols_[static_cast<size_t>(word++)];
          symbols_[static_cast<size_t>(write++)] = end_of_word;
        }
        word = next + 1;
      }
      if (write == begin) continue;
      const auto length = static_cast<uint32_t>(write - begin - 1);
      if (joins) {
        blocks_[kept - 1].length = length;
      } else {
        blocks_[kept++] = {begin, row.count, length};
      }
    }
    blocks_.resize(kept);
    symbols_.resize(static_cast<size_t>(write));
  }

 private:
  struct Block {
    int64_t begin;  // in symbols_
    int64_t count;
    uint32_t length;  // without the last end_of_word
  };
  static_assert(sizeof(Block) == bytes_per_block);

  void add_blocks(int64_t begin, int64_t end, int64_t count, int64_t block_symbols) {
    int64_t start = begin;
    for (int64_t i = begin; i < end; ++i) {
      if (symbols_[static_cast<size_t>(i)] != end_of_word) continue;
      if (i + 1 < end && i - start < block_symbols) continue;
      blocks_.push_back({start, count, static_cast<uint32_t>(i - start)});
      start = i + 1;
    }
  }

  std::vector<Symbol> symbols_;
  std::vector<Block> blocks_;
};

}  // namespace athanor
