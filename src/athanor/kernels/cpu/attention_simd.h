// Tile kernels of attention in fp32 arithmetic, for the best instruction set of the processor.
//
// Called by attention.cpp. Thread safety: pure functions.
#pragma once

#include "athanor/kernels/cpu/attention_plan.h"

namespace athanor::cpu {

AttentionTile simd_forward_tile();
AttentionTile simd_backward_tile();
// Backward with several chunks: one tile for each (sample, key head, key block).
AttentionTile simd_sum_tile();

}  // namespace athanor::cpu
