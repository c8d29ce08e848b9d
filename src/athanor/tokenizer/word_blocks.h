// Words as rows of token ids in one array, in blocks of words that have one count.
//
// Called by merge_learner.cpp. A block is the unit that an index of pairs points to: one word where memory is
// plentiful, many words where it is not. `Symbol` is uint16_t or uint32_t; its greatest value ends a word.
// Thread safety: different blocks may be read and changed from different threads.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
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
    if (keep_blocks_ && (between_.blocks.empty() || between_.blocks.back() != block)) {
      between_.blocks.push_back(block);
    }
  }
  // False: counts are kept only.
  void keep_blocks(bool keep) { keep_blocks_ = keep; }

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

  void add(Side& side, uint32_t neighbour, std::vector<uint32_t>& touched, int64_t count,
           uint32_t block) const {
    if (side.count == 0) touched.push_back(neighbour);
    side.count += count;
    if (keep_blocks_ && (side.blocks.empty() || side.blocks.back() != block)) side.blocks.push_back(block);
  }
  static void add_side(Side& side, uint32_t neighbour, std::vector<uint32_t>& touched, const Side& other) {
    if (side.count == 0) touched.push_back(neighbour);
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
  bool keep_blocks_ = true;
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
      int64_t symbols, begin, words;
    };
    std::unordered_map<uint64_t, Group> groups;
    int64_t total = 0;
    words.for_each([&](std::string_view word, uint64_t count) {
      if (word.size() < 2 || count == 0) return;
      int64_t occurrences = 0;
      ATHANOR_ASSERT(word.size() < longest_block / 2);
      if (__builtin_mul_overflow(word.size(), count, &occurrences) ||
          __builtin_add_overflow(total, occurrences, &total)) {
        throw_user_error("the counts of the words exceed 2^63 bytes of text");
      }
      Group& group = groups.try_emplace(count, Group{count, 0, 0, 0}).first->second;
      group.symbols += static_cast<int64_t>(word.size()) + 1;
      ++group.words;
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
    int64_t blocks = 0;
    for (const Group* group : order) {
      const int64_t words_there = block_symbols == 0 ? group->words : group->symbols / block_symbols + 1;
      blocks += std::min(words_there, group->words);
    }
    blocks_.reserve(static_cast<size_t>(blocks));
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
  static constexpr int64_t bytes_per_block = 16;

  // visit(left, right, count) for every pair of neighbours in a block, in order.
  template <typename Visit>
  void for_each_pair(uint32_t block, Visit&& visit) const {
    const Block& row = blocks_[block];
    const Symbol* symbol = symbols_.data() + row.begin;
    const auto length = static_cast<uint32_t>(row.length);
    for (uint32_t i = 1; i < length; ++i) {
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
    const auto length = static_cast<uint32_t>(row.length);
    const auto a = static_cast<Symbol>(left);
    const auto b = static_cast<Symbol>(right);
    uint32_t read = find_pair(symbol, 0, length, a, b);
    if (read == length) return;
    uint32_t write = read;
    bool after_merge = false;  // the symbol written last is one of this call
    while (read < length) {
      if (after_merge) {
        neighbours.add_between(row.count, block);
      } else if (write > 0 && symbol[write - 1] != end_of_word) {
        neighbours.add_before(symbol[write - 1], row.count, block);
      }
      symbol[write++] = static_cast<Symbol>(result);
      read += 2;
      const uint32_t next = find_pair(symbol, read, length, a, b);
      after_merge = next == read && next < length;
      if (read < length && !after_merge && symbol[read] != end_of_word) {
        neighbours.add_after(symbol[read], row.count, block);
      }
      std::memmove(symbol + write, symbol + read, (next - read) * sizeof(Symbol));
      write += next - read;
      read = next;
    }
    row.length = write & (longest_block - 1);
  }

  // Joins neighbouring blocks of one count until each reaches `block_symbols`, which must not fall from call
  // to call, and leaves out words that have become one token.
  void regroup(int64_t block_symbols) {
    int64_t write = 0;
    size_t kept = 0;
    for (size_t index = 0; index < blocks_.size(); ++index) {
      const Block row = blocks_[index];
      const bool joins = kept > 0 && blocks_[kept - 1].count == row.count &&
                         static_cast<int64_t>(blocks_[kept - 1].length) < block_symbols;
      const int64_t begin = joins ? static_cast<int64_t>(blocks_[kept - 1].begin) : write;
      auto word = static_cast<int64_t>(row.begin);
      const auto end = static_cast<int64_t>(row.begin + row.length);
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
      if (!joins) ++kept;
      blocks_[kept - 1] = block_of(begin, write - 1, row.count);
    }
    blocks_.resize(kept);
    symbols_.resize(static_cast<size_t>(write));
  }

 private:
  struct Block {
    uint64_t begin : 40;   // in symbols_
    uint64_t length : 24;  // without the last end_of_word
    int64_t count;
  };
  static_assert(sizeof(Block) == bytes_per_block);
  static constexpr size_t longest_block = size_t{1} << 24;

  static Block block_of(int64_t begin, int64_t end, int64_t count) {
    return {static_cast<uint64_t>(begin) & ((uint64_t{1} << 40) - 1),
            static_cast<uint64_t>(end - begin) & (longest_block - 1), count};
  }

  // The first place of the pair from `begin` on; `length` if there is none. Looks at eight bytes at a time: a
  // symbol of `differs` is 0 where the pair is, and the lowest marked one of `zeros` is where it is first.
  static uint32_t find_pair(const Symbol* symbol, uint32_t begin, uint32_t length, Symbol a, Symbol b) {
    static_assert(std::endian::native == std::endian::little);
    constexpr uint32_t width = sizeof(uint64_t) / sizeof(Symbol);
    constexpr uint64_t ones = ~uint64_t{0} / std::numeric_limits<Symbol>::max();
    constexpr uint32_t bits = 8 * sizeof(Symbol);
    constexpr uint64_t tops = ones << (bits - 1);
    const uint64_t all_a = ones * a, all_b = ones * b;
    const auto zeros_at = [&](uint32_t place) {
      uint64_t here = 0, behind = 0;
      std::memcpy(&here, symbol + place, sizeof here);
      std::memcpy(&behind, symbol + place + 1, sizeof behind);
      const uint64_t differs = (here ^ all_a) | (behind ^ all_b);
      return (differs - ones) & ~differs & tops;
    };
    while (begin + 4 * width < length && (zeros_at(begin) | zeros_at(begin + width) |
                                          zeros_at(begin + 2 * width) | zeros_at(begin + 3 * width)) == 0) {
      begin += 4 * width;
    }
    for (; begin + width < length; begin += width) {
      const uint64_t zeros = zeros_at(begin);
      if (zeros != 0) return begin + static_cast<uint32_t>(std::countr_zero(zeros)) / bits;
    }
    for (; begin + 1 < length; ++begin) {
      if (symbol[begin] == a && symbol[begin + 1] == b) return begin;
    }
    return length;
  }

  void add_blocks(int64_t begin, int64_t end, int64_t count, int64_t block_symbols) {
    int64_t start = begin;
    for (int64_t i = begin; i < end; ++i) {
      if (symbols_[static_cast<size_t>(i)] != end_of_word) continue;
      if (i + 1 < end && i - start < block_symbols) continue;
      blocks_.push_back(block_of(start, i, count));
      start = i + 1;
    }
  }

  std::vector<Symbol> symbols_;
  std::vector<Block> blocks_;
};

}  // namespace athanor
