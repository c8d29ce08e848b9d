// The inner part of a matrix product, on the calling thread: packs blocks of the operands as fp32, multiplies
// blocks in registers, and finishes a tile with bias, addend, activation and narrowing while it is cached.
//
// Called by matmul. Thread safety: pure functions of their operands.
//
// The scheme is the usual one of layered blocking (Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008): sums in registers, blocks of both operands in the second cache. Types are widened
// while packing, so every storage type runs at the speed of fp32.
// An element's sum is that of blocks of depth_block products, each summed in order: it depends on the two
// vectors alone, not on the tile it is computed in, nor on strides and types' layouts in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// The vectors of an operand along the summed dim: the rows of A, the columns of B. Element k of vector v is
// at v * stride + k when depth_contiguous, else at k * stride + v.
struct ProductOperand {
  const std::byte* data = nullptr;
  DType dtype = DType::fp32;
  int64_t stride = 0;
  bool depth_contiguous = true;

  const std::byte* at(int64_t vector, int64_t k) const {
    const int64_t element = depth_contiguous ? vector * stride + k : k * stride + vector;
    return data + element * static_cast<int64_t>(size_of(dtype));
  }
};

// Depth of a block. Packed blocks lie one after the other, each depth_block floats for every vector, vectors
// padded to a multiple of their unit: any range that begins at a multiple of the unit is contiguous.
inline constexpr int64_t depth_block = 256;
inline constexpr int64_t row_unit = 8, column_unit = 48;

// Rows of A: packed, or in place if the operand is fp32.
struct RowBlock {
  const float* data = nullptr;
  int64_t stride = 0;  // of the operand, if in place
  bool in_place = false;
  bool interleaved = false;  // the operand is not depth-contiguous
};

// Columns of B: packed, or in place if the operand is fp32, not depth-contiguous, and the columns are whole
// vectors (a multiple of 16).
struct ColumnBlock {
  const float* data = nullptr;
  int64_t stride = 0;  // of the operand, if in place
  bool in_place = false;
};

// Packs vectors [first, first + count) and elements [first_k, first_k + depth), depth <= depth_block.
void pack_rows(const ProductOperand& a, int64_t first, int64_t count, int64_t first_k, int64_t depth,
               float* to);
void pack_columns(const ProductOperand& b, int64_t first, int64_t count, int64_t first_k, int64_t depth,
                  float* to);

// Where a block's sums go: added to what is there, or not; with the bias [columns] added to them, if any.
struct BlockSums {
  float* data = nullptr;
  int64_t stride = 0;
  bool accumulate = false;
  const float* bias = nullptr;
};

// sums[rows, columns] = A B over `depth` <= depth_block. `next` (may be empty) is what will be multiplied
// next; it is brought nearer meanwhile.
void multiply_block(const RowBlock& a, const ColumnBlock& b, int64_t rows, int64_t columns, int64_t depth,
                    const BlockSums& sums, std::span<const float> next);

// sums += bias + addend, result = sums, activated = gelu(result), for a tile [rows, columns]; each of bias,
// addend, activated and result may be absent.
void finish_tile(int64_t rows, int64_t columns, float* sums, int64_t sums_stride, ConstSpan bias,
                 ConstRows addend, Rows result, Rows activated);

}  // namespace athanor::cpu
