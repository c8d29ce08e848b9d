// Dropout (Srivastava et al. 2014), with or without the residual addition that follows it, on the CPU.
//
// Called by the kernel table's adapters. Which elements are dropped is a function of global coordinates
// alone: see kernels/dropout_coordinates.h. Operands are [tokens, features] with strides and types (fp32,
// bf16, fp16) of their own. Thread safety: pure functions of their operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"
#include "athanor/kernels/dropout_coordinates.h"

namespace athanor::cpu {

// y = addend + x * mask / (1 - probability). Token t belongs to sample sample_ids[t / tokens_per_sample] and
// has index indices[t] in it. y may be the memory of x or of addend. The gradient with respect to x is the
// same kernel on dy, without addend. Probability in [0, 1).
struct Dropout {
  int64_t tokens = 0, features = 0;
  int64_t tokens_per_sample = 1;
  ConstRows x{}, addend{};  // addend optional
  Rows y{};
  const int64_t* sample_ids = nullptr;
  const int32_t* indices = nullptr;
  DropoutKey key{};
  double probability = 0;
};
void dropout(ThreadTeam& team, const Dropout& arguments);

}  // namespace athanor::cpu
