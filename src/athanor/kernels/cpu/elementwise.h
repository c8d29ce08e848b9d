// Copies, casts and sums of whole tensors, on the CPU.
//
// Called by the kernel table's adapters and by other kernels. Each operand is [rows, features] with its own
// stride and its own type among fp32, bf16, fp16 (fp64 too in cast); arithmetic in fp32, one rounding at the
// end. An output may be the same memory as an input of the same type and stride. Thread safety: pure
// functions of their operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// to = from. Between equal types a copy of the bits; from fp64 to a 16-bit type by way of fp32.
void cast(ThreadTeam& team, int64_t rows, int64_t features, ConstRows from, Rows to);

// to = 0.
void fill_zero(ThreadTeam& team, int64_t rows, int64_t features, Rows to);

// y = a + b.
void add(ThreadTeam& team, int64_t rows, int64_t features, ConstRows a, ConstRows b, Rows y);

// y = factor * x.
void scale(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x, float factor, Rows y);

}  // namespace athanor::cpu
