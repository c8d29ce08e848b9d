#include "athanor/kernels/cpu/matmul_grid.h"

#include <algorithm>

#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {
namespace {

// Units of a packed strip on the widest instruction set: smaller pieces would be padded.
constexpr int64_t row_unit = 8, column_unit = 48;
// Packing costs a tile (rows + columns) x depth, multiplying rows x columns x depth: large tiles are better,
// as long as the packed block of columns stays in the second cache.
constexpr int64_t most_rows = 512, most_columns = 768;
// Enough tiles to share among cores, unless they would get shorter than it takes to hand them out.
constexpr int64_t wanted_tiles = 16;
constexpr double least_flops = 8e6;

}  // namespace

int64_t EvenSplit::longest() const {
  int64_t most = 0;
  for (int64_t part = 0; part < parts; ++part) most = std::max(most, end(part) - begin(part));
  return most;
}

TileGrid tile_grid(int64_t rows, int64_t columns, int64_t depth) {
  TileGrid grid{{rows, std::max<int64_t>(1, ceil_divide(rows, most_rows)), row_unit},
                {columns, std::max<int64_t>(1, ceil_divide(columns, most_columns)), column_unit}};
  const double flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  while (grid.tiles() < wanted_tiles && flops / static_cast<double>(2 * grid.tiles()) >= least_flops) {
    const int64_t tile_rows = rows / grid.rows.parts, tile_columns = columns / grid.columns.parts;
    if (tile_rows >= tile_columns && tile_rows >= 2 * row_unit) {
      grid.rows.parts *= 2;
    } else if (tile_columns >= 2 * column_unit) {
      grid.columns.parts *= 2;
    } else {
      break;
    }
  }
  return grid;
}

}  // namespace athanor::cpu
