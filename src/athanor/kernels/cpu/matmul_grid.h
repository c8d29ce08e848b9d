// How a matrix product is cut up: from its shape and types alone, so that the result does not depend on the
// team.
//
// Called by matmul. Thread safety: values.
#pragma once

#include <algorithm>
#include <cstdint>

#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// [0, size) in `parts` ranges of nearly equal length whose inner ends are multiples of `unit`.
struct EvenSplit {
  int64_t size = 0, parts = 1, unit = 1;

  static EvenSplit into(int64_t size, int64_t parts, int64_t unit) {
    return {size, std::clamp<int64_t>(parts, 1, std::max<int64_t>(1, ceil_divide(size, unit))), unit};
  }
  int64_t begin(int64_t part) const {
    return part == parts ? size : ceil_divide(size, unit) * part / parts * unit;
  }
  int64_t end(int64_t part) const { return begin(part + 1); }
  int64_t longest() const {
    int64_t most = 0;
    for (int64_t part = 0; part < parts; ++part) most = std::max(most, end(part) - begin(part));
    return most;
  }
};

// B is packed slab by slab: slabs of columns, and within each slabs of depth; the sums of an element grow
// from one slab of depth to the next. The columns of a slab and all rows are cut into tiles.
struct ProductGrid {
  EvenSplit column_slabs, depth_slabs, rows;
  int64_t column_parts = 1;  // of a slab

  EvenSplit columns(int64_t slab) const;  // of the slab, from its beginning
  int64_t tiles() const { return rows.parts * column_parts; }
};

// Tiles that are multiplied over the whole depth at once, from operands that are not packed here.
ProductGrid whole_depth_grid(int64_t rows, int64_t columns, int64_t depth);

// `sums_in_place`: the sums gather in the result itself, so that cutting the depth costs no memory.
ProductGrid product_grid(int64_t rows, int64_t columns, int64_t depth, bool sums_in_place);

}  // namespace athanor::cpu
