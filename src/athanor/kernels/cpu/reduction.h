// Sums of whole tensors, and the search for the first number that is not finite, on the CPU.
//
// Called by the kernel table's adapters and by the tools that locate a NaN. Thread safety: pure functions of
// their operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// *total (+)= sum of x [rows, features], fp32, bf16, fp16 or fp64: blocks of 2048 in fp32, everything above
// in fp64 and in the order of the tiles (fp64 throughout for fp64).
int64_t sum_workspace_bytes(int64_t rows, int64_t features);
void sum(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x, double* total, bool accumulate,
         std::byte* workspace);

// The row-major index (row * features + feature) of the first infinity or NaN of x, or -1.
int64_t first_non_finite(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x);

}  // namespace athanor::cpu
