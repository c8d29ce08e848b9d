#include "athanor/kernels/cpu/column_sum.h"
#include "athanor/kernels/cpu/highway_targets.h"
#include "athanor/kernels/cpu/norm.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/norm_gradient.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// Scratch: weight, then x, dy, dx and residual of one token.
void norm_input_gradient_tokens(const NormInputGradient& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t features = a.shape.features, count = a.shape.token_elements();
  const float* weight = widen(a.weight.data, a.weight.dtype, features, scratch);
  float* x_scratch = scratch + features;
  const bool centered = a.mean.data != nullptr;
  const auto width = static_cast<double>(features);
  for (int64_t token = begin; token < end; ++token) {
    const float* xs = widen(a.x.at(token).data, a.x.dtype, count, x_scratch);
    const float* dys = widen(a.dy.at(token).data, a.dy.dtype, count, x_scratch + count);
    const float* residuals = a.residual.present() ? widen(a.residual.at(token).data, a.residual.dtype, count,
                                                          x_scratch + 3 * count)
                                                  : nullptr;
    const Span dx = a.dx.at(token);
    float* out = dx.dtype == DType::fp32 ? reinterpret_cast<float*>(dx.data) : x_scratch + 2 * count;
    for (int64_t row = 0; row < a.shape.rows_per_token; ++row) {
      const float* x = xs + row * features;
      const float* dy = dys + row * features;
      float* target = out + row * features;
      const Float mean = splat(centered ? a.mean.data[token * a.mean.stride + row] : 0.0F);
      const Float rstd = splat(a.rstd.data[token * a.rstd.stride + row]);
      // Unused lanes of dy are zero, and with them every product below.
      const double along = sum_vectors(features, [&](int64_t j, auto extent) HWY_ATTR {
        const Float normal = only(hn::Mul(hn::Sub(load(x + j, extent), mean), rstd), extent);
        return hn::Mul(hn::Mul(load(dy + j, extent), load(weight + j, extent)), normal);
      });
      const double total = centered
                               ? sum_vectors(features,
                                             [&](int64_t j, auto extent) HWY_ATTR {
                                               return hn::Mul(load(dy + j, extent), load(weight + j, extent));
                                             })
                               : 0.0;
      const Float average_along = splat(static_cast<float>(along / width));
      const Float average = splat(static_cast<float>(total / width));
      const float* residual = residuals != nullptr ? residuals + row * features : nullptr;
      for_vectors(features, [&](int64_t j, auto extent) HWY_ATTR {
        const Float normal = hn::Mul(hn::Sub(load(x + j, extent), mean), rstd);
        const Float g = hn::Mul(load(dy + j, extent), load(weight + j, extent));
        const Float inner = hn::NegMulAdd(normal, average_along, hn::Sub(g, average));
        const Float added = residual != nullptr ? load(residual + j, extent) : zero();
        store(hn::MulAdd(inner, rstd, added), target + j, extent);
      });
    }
    narrow(out, dx.data, dx.dtype, count);
  }
}

// Adds tokens [begin, end) to dweight and, where wanted, dbias, both of one block. Scratch: x and dy of one
// token.
void norm_weight_gradient_tokens(const NormWeightGradient& a, int64_t begin, int64_t end, float* dweight,
                                 float* dbias, float* scratch) {
  const int64_t features = a.shape.features, count = a.shape.token_elements();
  for (int64_t token = begin; token < end; ++token) {
    const float* xs = widen(a.x.at(token).data, a.x.dtype, count, scratch);
    const float* dys = widen(a.dy.at(token).data, a.dy.dtype, count, scratch + count);
    for (int64_t row = 0; row < a.shape.rows_per_token; ++row) {
      const float* x = xs + row * features;
      const float* dy = dys + row * features;
      const Float mean = splat(a.mean.data != nullptr ? a.mean.data[token * a.mean.stride + row] : 0.0F);
      const Float rstd = splat(a.rstd.data[token * a.rstd.stride + row]);
      for_vectors(features, [&](int64_t j, auto extent) HWY_ATTR {
        const Float normal = hn::Mul(hn::Sub(load(x + j, extent), mean), rstd);
        const Float g = load(dy + j, extent);
        store(hn::MulAdd(g, normal, load(dweight + j, extent)), dweight + j, extent);
        if (dbias != nullptr) store(hn::Add(g, load(dbias + j, extent)), dbias + j, extent);
      });
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(norm_input_gradient_tokens);
HWY_EXPORT(norm_weight_gradient_tokens);

int64_t norm_input_gradient_workspace_bytes(const NormShape& shape, int threads) {
  const int64_t floats = align_floats(shape.features + 4 * shape.token_elements());
  return threads * floats * static_cast<int64_t>(sizeof(float));
}

void norm_input_gradient(ThreadTeam& team, const NormInputGradient& arguments, std::byte* workspace) {
  const NormShape& shape = arguments.shape;
  if (shape.token_elements() <= 0) return;
  const int64_t tile = tokens_per_tile(shape.token_elements());
  const int64_t floats = align_floats(shape.features + 4 * shape.token_elements());
  team.parallel_for(ceil_divide(shape.tokens, tile), [&](int64_t index, int thread) {
    HWY_DYNAMIC_DISPATCH(norm_input_gradient_tokens)
    (arguments, index * tile, std::min(shape.tokens, (index + 1) * tile),
     reinterpret_cast<float*>(workspace) + thread * floats);
  });
}

int64_t norm_weight_gradient_workspace_bytes(const NormShape& shape, int threads) {
  const int64_t partials = TokenBlocks(shape.tokens).count * align_floats(shape.features) * 2;
  const int64_t floats = partials + threads * align_floats(2 * shape.token_elements());
  return floats * static_cast<int64_t>(sizeof(float));
}

void norm_weight_gradient(ThreadTeam& team, const NormWeightGradient& arguments, std::byte* workspace) {
  const NormShape& shape = arguments.shape;
  if (shape.features <= 0) return;
  const TokenBlocks blocks(shape.tokens);
  const int64_t width = align_floats(shape.features), scratch = align_floats(2 * shape.token_elements());
  auto* partials = reinterpret_cast<float*>(workspace);
  float* scratches = partials + blocks.count * width * 2;
  team.parallel_for(blocks.count, [&](int64_t block, int thread) {
    float* dweight = partials + block * width;
    float* dbias = arguments.dbias != nullptr ? partials + (blocks.count + block) * width : nullptr;
    std::fill_n(dweight, width, 0.0F);
    if (dbias != nullptr) std::fill_n(dbias, width, 0.0F);
    HWY_DYNAMIC_DISPATCH(norm_weight_gradient_tokens)
    (arguments, blocks.begin(block), blocks.end(block), dweight, dbias, scratches + thread * scratch);
  });
  combine_blocks(team, partials, blocks.count, width, shape.features, arguments.dweight,
                 arguments.accumulate);
  if (arguments.dbias != nullptr) {
    combine_blocks(team, partials + blocks.count * width, blocks.count, width, shape.features,
                   arguments.dbias, arguments.accumulate);
  }
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
