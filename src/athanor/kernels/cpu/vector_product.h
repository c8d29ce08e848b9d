// Products of a few token vectors with a weight [N,K], on the CPU: y [M,N] = x [M,K] weight^T + bias,
// activated = gelu(y as stored).
//
// For programs that continue sequences by one token each, where reading the weight is nearly all of the time:
// every row of it is read once, in order, by one thread. Called by the kernel table's adapter for products.
// Types: fp32, bf16, fp16, each operand its own; sums in fp32 in an order that depends on K and the
// instruction set alone: the bits of a row of y do not depend on the other rows, on M or on the team. Thread
// safety: pure functions of their operands.
#pragma once

#include <cstddef>
#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

struct VectorProduct {
  int64_t tokens = 0, outputs = 0, inputs = 0;  // M, N, K
  ConstRows x;                                  // may be the memory of no other operand
  ConstRows weight;
  ConstSpan bias{nullptr, DType::fp32};  // absent: no data
  Rows y;
  Rows activated;  // absent: no data
};

int64_t vector_product_workspace_bytes(int64_t tokens, int64_t outputs, int64_t inputs, DType weight,
                                       int threads);
void vector_product(ThreadTeam& team, const VectorProduct& arguments, std::byte* workspace);

}  // namespace athanor::cpu
