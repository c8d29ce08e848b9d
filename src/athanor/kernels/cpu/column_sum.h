// Sums over tokens: the gradient of a bias, and the blocks that every such sum is cut into.
//
// Called by the kernel table's adapters and by other kernels. Sums are fp32 within a block of tokens and fp64
// over the blocks, in their order; blocks depend on the number of tokens only. Thread safety: pure functions
// of their operands.
#pragma once

#include <algorithm>
#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// At most 64 blocks of equal length, none shorter than 32 tokens but the last.
struct TokenBlocks {
  explicit TokenBlocks(int64_t token_count)
      : tokens(token_count),
        length(std::max<int64_t>(32, ceil_divide(tokens, 64))),
        count(ceil_divide(tokens, length)) {}
  int64_t begin(int64_t block) const { return block * length; }
  int64_t end(int64_t block) const { return std::min(tokens, (block + 1) * length); }

  int64_t tokens, length, count;
};

// out[f] (+)= sum over blocks of partials[block * stride + f], f < features.
void combine_blocks(ThreadTeam& team, const float* partials, int64_t blocks, int64_t stride, int64_t features,
                    float* out, bool accumulate);

// out[f] (+)= sum over tokens of x[token, f]; x is fp32, bf16 or fp16.
int64_t column_sum_workspace_bytes(int64_t tokens, int64_t features);
void column_sum(ThreadTeam& team, int64_t tokens, int64_t features, ConstRows x, float* out, bool accumulate,
                std::byte* workspace);

}  // namespace athanor::cpu
