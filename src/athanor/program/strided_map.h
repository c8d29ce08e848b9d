// A map from bytes to labels for memory that is used in rows that stand apart as well as in one piece: the
// query part of every token's row, say. Costs per access do not grow with the number of rows.
//
// Internal to `program`. Thread safety: a value type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "athanor/program/interval_map.h"

namespace athanor {

// `rows` pieces of `width` bytes, `stride` bytes from one start to the next. One row: stride is of no
// account.
struct StridedRange {
  int64_t begin = 0, width = 0, stride = 0, rows = 1;

  bool empty() const { return width <= 0 || rows <= 0; }
  bool in_one_piece() const { return rows == 1 || stride == width; }
  int64_t end() const { return in_one_piece() ? begin + rows * width : begin + (rows - 1) * stride + width; }
  ByteRange hull() const { return {begin, end()}; }
  StridedRange moved(int64_t bytes) const { return {begin + bytes, width, stride, rows}; }
  friend bool operator==(const StridedRange&, const StridedRange&) = default;
};

template <class Label>
class StridedMap {
 public:
  // Gives the bytes a label. Exact where rows of one pattern share memory, or meet memory of one label or
  // none; where patterns that do not fit each other meet, the older labels in reach are forgotten.
  void assign(const StridedRange& range, const Label& label) {
    if (range.empty()) return;
    if (!find(range, [&](const Label* found) { return found == nullptr || *found != label; })) return;
    if (range.in_one_piece()) {
      drop_blocks(range.hull());
      flat_.assign(range.hull(), label);
      return;
    }
    Block* block = block_for(range);
    if (block == nullptr) block = &make_block(range);
    const int64_t column = range.begin - block->origin;
    block->columns.assign({column, column + range.width}, label);
    // Rows that are whole and of one label are one piece.
    const ByteRange row{block->first, block->first + block->stride};
    if (const auto whole = block->columns.interval_around(row)) {
      const Label same = whole->second;
      const ByteRange bytes{block->begin(), block->begin() + block->rows * block->stride};
      drop_blocks(bytes);
      flat_.assign(bytes, same);
    }
  }

  // The first piece whose label (null: none) satisfies the predicate; of rows, the piece of the first row.
  template <class Predicate>
  std::optional<std::pair<ByteRange, const Label*>> find(const StridedRange& range,
                                                         const Predicate& predicate) const {
    if (range.empty()) return std::nullopt;
    if (range.in_one_piece()) return find_in_piece(range.hull(), predicate);
    const ByteRange hull = range.hull();
    for (int64_t at = hull.begin; at < hull.end;) {
      const Block* block = block_at({at, hull.end});
      const int64_t flat_end = block == nullptr ? hull.end : std::max(at, block->begin());
      if (const auto found = find_in_flat(range, {at, flat_end}, predicate)) return found;
      if (block == nullptr) break;
      const int64_t end = std::min(hull.end, block->end());
      if (const auto found = find_in_block(range, *block, {std::max(at, block->begin()), end}, predicate))
        return found;
      at = end;
    }
    return std::nullopt;
  }

  // Calls visit(StridedRange) for everything that has a label.
  template <class Visit>
  void visit_all(const Visit& visit) const {
    flat_.visit_all(
        [&](ByteRange piece) { visit(StridedRange{piece.begin, piece.end - piece.begin, 0, 1}); });
    for (const Block& block : blocks_) {
      block.columns.visit_all([&](ByteRange piece) {
        visit(StridedRange{block.origin + piece.begin, piece.end - piece.begin, block.stride, block.rows});
      });
    }
  }

 private:
  // Rows of one pattern: byte `column` of row r stands at origin + r * stride + column. The frame [first,
  // last) of columns is at most a stride wide, so that no row reaches into the next. Of it [own_first,
  // own_last) was assigned as rows; columns beside that were found in place and may be forgotten when they
  // are in the way.
  struct Block {
    int64_t stride = 0, rows = 0, origin = 0, first = 0, last = 0, own_first = 0, own_last = 0;
    IntervalMap<Label> columns;
    int64_t begin() const { return origin + first; }
    int64_t end() const { return origin + (rows - 1) * stride + last; }
    ByteRange own_hull() const { return {origin + own_first, origin + (rows - 1) * stride + own_last}; }
    // Whether the rows are rows of this pattern that lie in the frame.
    bool covers(const StridedRange& range) const {
      const int64_t column = range.begin - origin;
      return range.stride == stride && range.rows == rows && first <= column && column + range.width <= last;
    }
    // Takes up rows if they are of this pattern and can stand beside what it owns.
    bool can_own(const StridedRange& range) const {
      const int64_t column = range.begin - origin;
      return range.stride == stride && range.rows == rows &&
             std::max(own_last, column + range.width) - std::min(own_first, column) <= stride;
    }
  };

  void take_up(Block& block, const StridedRange& range) {
    const int64_t column = range.begin - block.origin;
    block.own_first = std::min(block.own_first, column);
    block.own_last = std::max(block.own_last, column + range.width);
    const bool before = block.own_first < block.first;
    block.first = std::min(block.first, block.own_first);
    block.last = std::max(block.last, block.own_last);
    if (block.last - block.first <= block.stride) return;
    if (before)
      shrink(block, block.first, block.first + block.stride);
    else
      shrink(block, block.last - block.stride, block.last);
  }

  void forget_found(Block& block) { shrink(block, block.own_first, block.own_last); }

  // Of the columns beside the new frame, what stands before the first row or behind the last one is no longer
  // within the block, and keeps its label.
  void shrink(Block& block, int64_t first, int64_t last) {
    const auto give_back = [&](ByteRange columns, int64_t row) {
      if (columns.begin >= columns.end) return;
      block.columns.visit(columns, [&](ByteRange piece, const Label* label) {
        const int64_t start = block.origin + row * block.stride;
        if (label != nullptr) flat_.assign({piece.begin + start, piece.end + start}, *label);
      });
    };
    give_back({block.first, first}, 0);
    give_back({last, block.last}, block.rows - 1);
    block.first = first;
    block.last = last;
    block.columns.erase({std::numeric_limits<int64_t>::min(), first});
    block.columns.erase({last, std::numeric_limits<int64_t>::max()});
  }

  static bool meet(ByteRange a, ByteRange b) { return a.begin < b.end && b.begin < a.end; }

  // The first block whose hull shares bytes with the range.
  const Block* block_at(ByteRange range) const {
    const Block* first = nullptr;
    for (const Block& block : blocks_) {
      if (block.begin() >= range.end || range.begin >= block.end()) continue;
      if (first == nullptr || block.begin() < first->begin()) first = &block;
    }
    return first;
  }

  // The block that takes the rows up, if there is one and no other is in the way.
  Block* block_for(const StridedRange& range) {
    for (Block& block : blocks_) {
      if (!block.can_own(range)) continue;
      const ByteRange own = block.own_hull();
      const ByteRange whole{std::min(own.begin, range.begin), std::max(own.end, range.end())};
      const bool others = std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& other) {
        return &other != &block && meet(other.own_hull(), whole);
      });
      if (others) continue;
      for (Block& other : blocks_) {
        if (&other != &block && meet({other.begin(), other.end()}, whole)) forget_found(other);
      }
      take_up(block, range);
      flat_.erase({block.begin(), block.end()});
      return &block;
    }
    return nullptr;
  }

  Block& make_block(const StridedRange& range) {
    Block block{.stride = range.stride,
                .rows = range.rows,
                .origin = range.begin,
                .first = 0,
                .last = range.width,
                .own_first = 0,
                .own_last = range.width,
                .columns = {}};
    // Where all that lies under the rows has one label, the gaps between the rows keep it.
    const auto under = flat_.interval_around(range.hull());
    if (under && block_at(range.hull()) == nullptr) {
      const ByteRange whole = under->first;
      // The gap behind a row rather than the one before it: what comes next is most often written there.
      block.last = std::min(whole.end - (range.begin + (range.rows - 1) * range.stride), range.stride);
      block.first = std::max(whole.begin - range.begin, block.last - range.stride);
      block.columns.assign({block.first, block.last}, under->second);
    }
    drop_blocks({block.begin(), block.end()});
    flat_.erase({block.begin(), block.end()});
    return blocks_.emplace_back(std::move(block));
  }

  // Forgets what blocks own in the range, with the whole block, and what they found there.
  void drop_blocks(ByteRange range) {
    std::erase_if(blocks_, [&](Block& block) {
      if (!meet({block.begin(), block.end()}, range)) return false;
      forget_found(block);
      return meet(block.own_hull(), range);
    });
  }

  template <class Predicate>
  static std::optional<std::pair<ByteRange, const Label*>> find_in(const IntervalMap<Label>& map,
                                                                   ByteRange range, int64_t shift,
                                                                   const Predicate& predicate) {
    std::optional<std::pair<ByteRange, const Label*>> result;
    map.visit(range, [&](ByteRange piece, const Label* label) {
      if (!result && predicate(label)) result = {{piece.begin + shift, piece.end + shift}, label};
    });
    return result;
  }

  // What rows have in common with a part of memory that no block holds.
  template <class Predicate>
  std::optional<std::pair<ByteRange, const Label*>> find_in_flat(const StridedRange& range, ByteRange part,
                                                                 const Predicate& predicate) const {
    std::optional<std::pair<ByteRange, const Label*>> result;
    if (part.begin >= part.end) return result;
    flat_.visit(part, [&](ByteRange piece, const Label* label) {
      if (result || !predicate(label)) return;
      const int64_t row = floor_of(piece.begin - range.begin, range.stride);
      for (const int64_t r : {row, row + 1}) {  // the first row that may reach into the piece, and the next
        if (r < 0 || r >= range.rows) continue;
        const int64_t begin = range.begin + r * range.stride;
        const ByteRange common{std::max(begin, piece.begin), std::min(begin + range.width, piece.end)};
        if (common.begin < common.end && !result) result = {common, label};
      }
    });
    return result;
  }

  // What rows have in common with a part of a block.
  template <class Predicate>
  std::optional<std::pair<ByteRange, const Label*>> find_in_block(const StridedRange& range,
                                                                  const Block& block, ByteRange part,
                                                                  const Predicate& predicate) const {
    if (block.covers(range)) {
      const int64_t column = range.begin - block.origin;
      return find_in(block.columns, {column, column + range.width}, block.origin, predicate);
    }
    const ByteRange row{block.first, block.first + block.stride};
    if (!find_in(block.columns, row, block.origin, predicate)) return std::nullopt;
    const int64_t first = std::max(int64_t{0}, floor_of(part.begin - range.begin, range.stride));
    for (int64_t r = first; r < range.rows; ++r) {
      const int64_t begin = range.begin + r * range.stride;
      if (begin >= part.end) break;
      const ByteRange common{std::max(begin, part.begin), std::min(begin + range.width, part.end)};
      if (common.begin >= common.end) continue;
      if (const auto found = find_in_piece(common, predicate)) return found;
    }
    return std::nullopt;
  }

  template <class Predicate>
  std::optional<std::pair<ByteRange, const Label*>> find_in_piece(ByteRange range,
                                                                  const Predicate& predicate) const {
    int64_t at = range.begin;
    while (at < range.end) {
      const Block* block = block_at({at, range.end});
      const int64_t flat_end = block == nullptr ? range.end : std::max(at, block->begin());
      if (const auto found = find_in(flat_, {at, flat_end}, 0, predicate)) return found;
      if (block == nullptr) return std::nullopt;
      at = flat_end;
      const int64_t end = std::min(range.end, block->end());
      // Whole rows are all alike, so that at most the first, one whole and the last one need a look.
      int64_t row = floor_of(at - block->origin - block->first, block->stride);
      const int64_t last_row = floor_of(end - 1 - block->origin - block->first, block->stride);
      for (int looks = 0; row <= last_row; ++looks) {
        const int64_t start = block->origin + row * block->stride;
        const int64_t row_end = row + 1 == block->rows ? block->last : block->first + block->stride;
        const ByteRange columns{std::max(at - start, block->first), std::min(end - start, row_end)};
        if (const auto found = find_in(block->columns, columns, start, predicate)) return found;
        row = looks == 1 ? std::max(row + 1, last_row) : row + 1;
      }
      at = end;
    }
    return std::nullopt;
  }

  static int64_t floor_of(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

  IntervalMap<Label> flat_;    // nothing within the hull of a block
  std::vector<Block> blocks_;  // their hulls are disjoint
};

}  // namespace athanor
