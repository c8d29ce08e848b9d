#include "athanor/kernels/cpu/matmul_grid.h"

#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {
namespace {

// Elements of a packed slab: 16 MiB.
constexpr int64_t slab_elements = int64_t{4} << 20;
constexpr int64_t least_slab_columns = 384;
// A tile's rows of A are packed for the whole depth of the slab.
constexpr int64_t short_depth = 1024, long_depth = 4096;
constexpr int64_t most_rows = 256;
// Enough tiles to share among cores, unless they would get shorter than it takes to hand them out.
constexpr int64_t wanted_tiles = 8;
constexpr double least_flops = 4e6;

// What a tile loses, relative to multiplying: reading B from the third cache is shared by its rows, packing A
// by its columns (both measured, on a core with two 512-bit multipliers); and a few tiles that do not divide
// by four leave cores idle at the end.
double tile_cost(int64_t rows, int64_t columns, int64_t row_parts, int64_t column_parts) {
  const double tile_rows = static_cast<double>(rows) / static_cast<double>(row_parts);
  const double tile_columns = static_cast<double>(columns) / static_cast<double>(column_parts);
  const int64_t tiles = row_parts * column_parts;
  const double idle = tiles > 1 && tiles < 32 && tiles % 4 != 0 ? 0.05 : 0;
  return 16 / tile_rows + 22 / tile_columns + idle;
}

// Cuts a slab into tiles, its columns into `least_column_parts` or more.
void cut_tiles(ProductGrid& grid, int64_t rows, int64_t columns, int64_t depth, int64_t least_column_parts) {
  const double flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  const auto wanted =
      static_cast<int64_t>(std::clamp(flops / least_flops, 1.0, static_cast<double>(wanted_tiles)));
  const int64_t least_row_parts = std::max<int64_t>(1, ceil_divide(rows, most_rows));
  const int64_t row_units = std::max<int64_t>(1, ceil_divide(rows, row_unit));
  const int64_t column_units = std::max<int64_t>(1, ceil_divide(columns, column_unit));
  double least_cost = 1e30;
  for (int64_t r = least_row_parts; r <= std::min(row_units, least_row_parts + wanted_tiles); ++r) {
    const int64_t c =
        std::clamp(ceil_divide(wanted, r), std::min(least_column_parts, column_units), column_units);
    const double cost = tile_cost(rows, columns, r, c);
    if (cost >= least_cost) continue;
    least_cost = cost;
    grid.rows = EvenSplit::into(rows, r, row_unit);
    grid.column_parts = c;
  }
}

}  // namespace

EvenSplit ProductGrid::columns(int64_t slab) const {
  return EvenSplit::into(column_slabs.end(slab) - column_slabs.begin(slab), column_parts, column_unit);
}

ProductGrid product_grid(int64_t rows, int64_t columns, int64_t depth, bool sums_in_place) {
  ProductGrid grid;
  const int64_t most_depth = sums_in_place || depth > long_depth ? short_depth : long_depth;
  grid.depth_slabs = EvenSplit::into(depth, ceil_divide(depth, most_depth), depth_block);
  const int64_t slab_depth = std::max<int64_t>(1, grid.depth_slabs.longest());
  const int64_t slab_columns = std::max(least_slab_columns, slab_elements / slab_depth);
  grid.column_slabs = EvenSplit::into(columns, ceil_divide(columns, slab_columns), column_unit);

  cut_tiles(grid, rows, grid.column_slabs.longest(), slab_depth, 1);
  return grid;
}

ProductGrid whole_depth_grid(int64_t rows, int64_t columns, int64_t depth) {
  // Of the sums, kept in fp32 beside the product, no more than the second cache holds.
  constexpr int64_t most_columns = 768;
  ProductGrid grid;
  grid.column_slabs = EvenSplit::into(columns, 1, column_unit);
  grid.depth_slabs = EvenSplit::into(depth, 1, depth_block);
  cut_tiles(grid, rows, columns, depth, ceil_divide(columns, most_columns));
  return grid;
}

}  // namespace athanor::cpu
