#include "athanor/kernels/cpu/matmul_grid.h"

#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {
namespace {

// Elements of a packed slab: 16 MiB.
constexpr int64_t slab_elements = int64_t{4} << 20;
constexpr int64_t least_slab_columns = 384;
// A tile's rows of A are packed for the whole depth of the slab.
constexpr int64_t short_depth = 1024, long_depth = 4096;
// A tile's rows share what it reads of B from the third cache; its columns share the packing of A.
constexpr int64_t most_rows = 256, least_rows = 48;
// Enough tiles to share among cores, unless they would get shorter than it takes to hand them out.
constexpr int64_t wanted_tiles = 8, wanted_with_cut_columns = 4;
constexpr double least_flops = 4e6;

// Cuts a slab into tiles, its columns into `column_parts` or more.
void cut_tiles(ProductGrid& grid, int64_t rows, int64_t columns, int64_t depth, int64_t column_parts) {
  const double flops =
      2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(depth);
  const int64_t wanted =
      std::clamp<int64_t>(static_cast<int64_t>(std::min(flops / least_flops, 1e6)), 1, wanted_tiles);
  const int64_t row_parts =
      std::max(ceil_divide(rows, most_rows), std::min(wanted / column_parts, ceil_divide(rows, least_rows)));
  grid.rows = EvenSplit::into(rows, row_parts, row_unit);
  // Few rows: columns are cut more.
  const int64_t most_column_parts = std::max<int64_t>(1, ceil_divide(columns, column_unit));
  grid.column_parts =
      std::clamp(wanted / grid.rows.parts, std::min(column_parts, most_column_parts), most_column_parts);
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
