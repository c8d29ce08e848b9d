// Products of bf16 operands with the machine's own bf16 instructions (AVX512-BF16, AMX), tile by tile through
// oneDNN, which is called on one thread at a time.
//
// Called by matmul. Thread safety: multiply() of different `thread`s may run at the same time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "athanor/kernels/cpu/matmul_grid.h"
#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {

// Whether bf16 instructions exist and multiply faster than fp32 ones after widening.
bool bf16_instructions_pay();
// Whether they exist at all.
bool has_bf16_instructions();

class BFloat16Tiles {
 public:
  // Of a product A B whose operands are both bf16, with tiles as `rows` and `columns` cut them. Only the
  // strides and orders of the operands are read. Throws an Error if oneDNN refuses.
  BFloat16Tiles(const ProductOperand& a, const ProductOperand& b, const EvenSplit& rows,
                const EvenSplit& columns, int64_t depth, int threads);
  ~BFloat16Tiles();
  BFloat16Tiles(const BFloat16Tiles&) = delete;
  BFloat16Tiles& operator=(const BFloat16Tiles&) = delete;

  // Bytes that one thread needs, to be 64-byte aligned.
  int64_t scratch_bytes() const;
  // sums = A B for the tile (row_part, column_part), compact, with A and B as described to the constructor.
  void multiply(const ProductOperand& a, const ProductOperand& b, int64_t row_part, int64_t column_part,
                float* sums, std::byte* scratch, int thread) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace athanor::cpu
