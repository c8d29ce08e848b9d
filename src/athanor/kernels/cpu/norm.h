// LayerNorm (Ba, Kiros, Hinton 2016) and RMSNorm (Zhang, Sennrich 2019) on the CPU, forward and backward.
//
// Called by the kernel table's adapters. A token has `rows_per_token` contiguous rows of `features` elements
// (1 for the model's norms, the number of heads for query/key norms), each normalised by itself. Operands
// may be fp32, bf16 and fp16 in any mixture; arithmetic and statistics are fp32. Scratch comes from the
// caller. Thread safety: pure functions of their operands; bits do not depend on the team.
#pragma once

#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

namespace athanor::cpu {

struct NormShape {
  int64_t tokens = 0;
  int64_t rows_per_token = 1;
  int64_t features = 0;
  int64_t token_elements() const { return rows_per_token * features; }
};

// One fp32 number for each row: that of row r of token t is data[t * stride + r].
template <class T>
struct Statistic {
  T* data = nullptr;
  int64_t stride = 1;
};

// y = (s - mean) * rstd * weight + bias with s = x + addend and rstd = 1 / sqrt(variance + epsilon). RMSNorm:
// `mean` absent, taken as 0, no bias. `total`, where s goes, may be the memory of x or of addend; what
// is normalised is s as stored there.
struct NormForward {
  NormShape shape{};
  ConstRows x{}, addend{};     // addend optional
  ConstSpan weight{}, bias{};  // [features]; bias optional
  Rows y{}, total{};           // total optional
  Statistic<float> mean{}, rstd{};
  double epsilon = 1e-5;
};
int64_t norm_workspace_bytes(const NormShape& shape, int threads);
void norm(ThreadTeam& team, const NormForward& arguments, std::byte* workspace);

// dx = rstd * (g - average(g) - xhat * average(g * xhat)) + residual with g = dy * weight and
// xhat = (x - mean) * rstd; for RMSNorm (`mean` absent) without the average of g. dx may be the memory of
// `residual` (optional) or of dy.
struct NormInputGradient {
  NormShape shape{};
  ConstRows dy{}, x{};
  ConstSpan weight{};
  Statistic<const float> mean{}, rstd{};
  ConstRows residual{};
  Rows dx{};
};
int64_t norm_input_gradient_workspace_bytes(const NormShape& shape, int threads);
void norm_input_gradient(ThreadTeam& team, const NormInputGradient& arguments, std::byte* workspace);

// dweight (+)= sum over rows of dy * xhat, dbias (+)= sum of dy (optional): fp32 within blocks of tokens
// whose number depends on the shape only, fp64 over the blocks in their order.
struct NormWeightGradient {
  NormShape shape{};
  ConstRows dy{}, x{};
  Statistic<const float> mean{}, rstd{};  // mean absent: RMSNorm
  float* dweight = nullptr;               // [features]
  float* dbias = nullptr;
  bool accumulate = false;
};
int64_t norm_weight_gradient_workspace_bytes(const NormShape& shape, int threads);
void norm_weight_gradient(ThreadTeam& team, const NormWeightGradient& arguments, std::byte* workspace);

}  // namespace athanor::cpu
