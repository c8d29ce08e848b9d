#include "athanor/kernels/cpu/matmul_grid.h"

#include <gtest/gtest.h>

#include <string>

#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {
namespace {

TEST(MatmulGrid, EvenSplitCoversItsRange) {
  for (const int64_t size : {0, 1, 7, 48, 49, 768, 50257}) {
    for (const int64_t parts : {1, 2, 3, 7, 16, 1000}) {
      const EvenSplit split = EvenSplit::into(size, parts, 48);
      int64_t end = 0, longest = 0;
      for (int64_t part = 0; part < split.parts; ++part) {
        EXPECT_EQ(split.begin(part), end);
        EXPECT_TRUE(size == 0 || split.end(part) > split.begin(part)) << size << " in " << parts;
        EXPECT_TRUE(part + 1 == split.parts || split.end(part) % 48 == 0);
        longest = std::max(longest, split.end(part) - end);
        end = split.end(part);
      }
      EXPECT_EQ(end, size);
      EXPECT_EQ(split.longest(), longest) << size << " in " << parts;
    }
  }
}

TEST(MatmulGrid, TilesCoverTheResultOnce) {
  for (const bool in_place : {false, true}) {
    for (const int64_t rows : {1, 65, 768, 4096, 50257}) {
      for (const int64_t columns : {1, 65, 768, 3072}) {
        for (const int64_t depth : {1, 128, 768, 50257}) {
          const ProductGrid packed = product_grid(rows, columns, depth, in_place);
          const ProductGrid whole = whole_depth_grid(rows, columns, depth);
          for (const ProductGrid& grid : {packed, whole}) {
            int64_t covered = 0;
            for (int64_t slab = 0; slab < grid.column_slabs.parts; ++slab) {
              const EvenSplit split = grid.columns(slab);
              EXPECT_LE(split.parts, grid.column_parts);
              for (int64_t part = 0; part < split.parts; ++part)
                covered += split.end(part) - split.begin(part);
            }
            EXPECT_EQ(covered, columns);
            EXPECT_EQ(grid.rows.size, rows);
            EXPECT_EQ(grid.depth_slabs.size, depth);
            EXPECT_LE(grid.rows.longest(), 256);
          }
          EXPECT_EQ(whole.depth_slabs.parts, 1);
          // The packed slab stays within its bound.
          EXPECT_LE(packed.column_slabs.longest() * packed.depth_slabs.longest(), int64_t{6} << 20);
        }
      }
    }
  }
}

// Large products have tiles enough to share among a few cores, small ones are left whole.
TEST(MatmulGrid, NumberOfTiles) {
  EXPECT_GE(product_grid(4096, 768, 768, true).tiles(), 8);
  EXPECT_GE(product_grid(768, 3072, 4096, true).tiles(), 8);
  EXPECT_GE(product_grid(1024, 50257, 768, false).tiles(), 8);
  EXPECT_GE(product_grid(16, 4096, 768, true).tiles(), 8);
  EXPECT_EQ(product_grid(64, 64, 64, true).tiles(), 1);
}

}  // namespace
}  // namespace athanor::cpu
