// How a matrix product is cut into tiles: from its shape alone, so that the result does not depend on the
// team.
//
// Called by matmul. Thread safety: values.
#pragma once

#include <cstdint>

namespace athanor::cpu {

// Cuts [0, size) into `parts` ranges of nearly equal length whose inner ends are multiples of `unit`.
struct EvenSplit {
  int64_t size = 0, parts = 1, unit = 1;

  int64_t begin(int64_t part) const {
    return part == parts ? size
                         : static_cast<int64_t>(static_cast<double>(size) * static_cast<double>(part) /
                                                static_cast<double>(parts)) /
                               unit * unit;
  }
  int64_t end(int64_t part) const { return begin(part + 1); }
  int64_t longest() const;
};

struct TileGrid {
  EvenSplit rows, columns;

  int64_t tiles() const { return rows.parts * columns.parts; }
};

// The grid of a rows x columns product over `depth`.
TileGrid tile_grid(int64_t rows, int64_t columns, int64_t depth);

}  // namespace athanor::cpu
