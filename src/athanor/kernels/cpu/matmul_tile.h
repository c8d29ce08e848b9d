// One tile of a matrix product, on the calling thread: packs blocks of both operands as fp32 and multiplies
// them in registers; then bias, addend, activation and narrowing on the tile while it is cached.
//
// Called by matmul. Thread safety: pure functions of their operands and scratch.
//
// The scheme is the usual one of layered blocking (Goto and van de Geijn, "Anatomy of high-performance matrix
// multiplication", 2008): a block of B stays in the second cache, a strip of A in the first, sums in
// registers. Types are widened while packing, so every storage type runs at the speed of fp32. An element's
// sum is that of blocks of depth_block products, each summed in order: it depends on the two vectors alone,
// not on the tile it is computed in nor on the strides.
#pragma once

#include <cstddef>
#include <cstdint>

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
  // The operand that begins at vector `vector`.
  ProductOperand from(int64_t vector) const { return {at(vector, 0), dtype, stride, depth_contiguous}; }
};

inline constexpr int64_t product_depth_block = 256;

// Bytes of scratch for tiles of at most so many columns.
int64_t tile_product_scratch_bytes(int64_t columns);

// c[rows, columns] = A B, added to what is there if `accumulate`. `scratch`: 64-byte aligned.
void tile_product(const ProductOperand& a, const ProductOperand& b, int64_t rows, int64_t columns,
                  int64_t depth, float* c, int64_t c_stride, bool accumulate, std::byte* scratch);

// sums += bias + addend, activated = gelu(sums), result = sums, for a tile [rows, columns]; each of bias,
// addend, activated and result may be absent.
void finish_tile(int64_t rows, int64_t columns, float* sums, int64_t sums_stride, ConstSpan bias,
                 ConstRows addend, Rows result, Rows activated);

}  // namespace athanor::cpu
