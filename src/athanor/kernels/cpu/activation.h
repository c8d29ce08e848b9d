// GELU (Hendrycks, Gimpel 2016, tanh form) and SwiGLU (Shazeer 2020) on the CPU, forward and backward, and
// soft caps of logits.
//
// Called by the kernel table's adapters; the row functions also by products that apply an activation to a
// tile while it is in the cache. Operands are [rows, features] with strides and types (fp32, bf16, fp16) of
// their own; arithmetic in fp32. An output may be the memory of an input of the same type and stride. Thread
// safety: pure functions of their operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

// y = x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))).
void gelu(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x, Rows y);
void gelu_rows(int64_t rows, int64_t features, ConstRows x, Rows y);  // on the calling thread

// y = cap tanh(x / cap).
void soft_cap(ThreadTeam& team, int64_t rows, int64_t features, float cap, ConstRows x, Rows y);

// dx = dy * gelu'(x).
void gelu_gradient(ThreadTeam& team, int64_t rows, int64_t features, ConstRows dy, ConstRows x, Rows dx);

// y = gate * sigmoid(gate) * up.
void swiglu(ThreadTeam& team, int64_t rows, int64_t features, ConstRows gate, ConstRows up, Rows y);

// The gradients with respect to gate and up.
void swiglu_gradient(ThreadTeam& team, int64_t rows, int64_t features, ConstRows dy, ConstRows gate,
                     ConstRows up, Rows dgate, Rows dup);

}  // namespace athanor::cpu
