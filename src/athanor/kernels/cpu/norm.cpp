#include "athanor/kernels/cpu/norm.h"

#include <cmath>

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// s = x + addend of one token as fp32: where x lies if that is all there is to it, else in `scratch`.
inline const float* token_sum(const NormForward& a, int64_t token, float* scratch) {
  const int64_t count = a.shape.token_elements();
  const ConstSpan x = a.x.at(token);
  if (!a.addend.present()) {
    const float* sum = widen(x.data, x.dtype, count, scratch);
    if (a.total.present()) narrow(sum, a.total.at(token).data, a.total.dtype, count);
    return sum;
  }
  Source x_source(x), addend(a.addend.at(token));
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* left = x_source.get(i, n);
    const float* right = addend.get(i, n);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      store(hn::Add(load(left + j, extent), load(right + j, extent)), scratch + i + j, extent);
    });
  });
  if (!a.total.present()) return scratch;
  // What is normalised is the sum as stored: computing the norm again from it gives the same bits.
  const Span total = a.total.at(token);
  narrow(scratch, total.data, total.dtype, count);
  return widen(total.data, total.dtype, count, scratch);
}

// Normalises tokens [begin, end). Scratch: see norm_workspace_bytes.
void norm_tokens(const NormForward& a, int64_t begin, int64_t end, float* scratch) {
  const int64_t features = a.shape.features;
  const float* weight = widen(a.weight.data, a.weight.dtype, features, scratch);
  const float* bias =
      a.bias.data != nullptr ? widen(a.bias.data, a.bias.dtype, features, scratch + features) : nullptr;
  float* token_scratch = scratch + 2 * features;
  const bool centered = a.mean.data != nullptr;
  const auto width = static_cast<double>(features);
  for (int64_t token = begin; token < end; ++token) {
    const float* sums = token_sum(a, token, token_scratch);
    const Span y = a.y.at(token);
    float* out = y.dtype == DType::fp32 ? reinterpret_cast<float*>(y.data) : token_scratch;
    for (int64_t row = 0; row < a.shape.rows_per_token; ++row) {
      const float* s = sums + row * features;
      float* target = out + row * features;
      float mean = 0;
      if (centered) {
        mean = static_cast<float>(
            sum_vectors(features, [&](int64_t j, auto extent) HWY_ATTR { return load(s + j, extent); }) /
            width);
        a.mean.data[token * a.mean.stride + row] = mean;
      }
      const Float center = splat(mean);
      const double squares = sum_vectors(features, [&](int64_t j, auto extent) HWY_ATTR {
        const Float distance = only(hn::Sub(load(s + j, extent), center), extent);
        return hn::Mul(distance, distance);
      });
      const auto rstd = static_cast<float>(1.0 / std::sqrt(squares / width + a.epsilon));
      a.rstd.data[token * a.rstd.stride + row] = rstd;
      const Float factor = splat(rstd);
      if (bias != nullptr) {
        for_vectors(features, [&](int64_t j, auto extent) HWY_ATTR {
          const Float normal = hn::Mul(hn::Sub(load(s + j, extent), center), factor);
          store(hn::MulAdd(normal, load(weight + j, extent), load(bias + j, extent)), target + j, extent);
        });
      } else {
        for_vectors(features, [&](int64_t j, auto extent) HWY_ATTR {
          const Float normal = hn::Mul(hn::Sub(load(s + j, extent), center), factor);
          store(hn::Mul(normal, load(weight + j, extent)), target + j, extent);
        });
      }
    }
    narrow(out, y.data, y.dtype, a.shape.token_elements());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(norm_tokens);

namespace {

// Floats of one thread: weight, bias, one token.
int64_t scratch_floats(const NormShape& shape) {
  return align_floats(2 * shape.features + shape.token_elements());
}

}  // namespace

int64_t norm_workspace_bytes(const NormShape& shape, int threads) {
  return threads * scratch_floats(shape) * static_cast<int64_t>(sizeof(float));
}

void norm(ThreadTeam& team, const NormForward& arguments, std::byte* workspace) {
  const NormShape& shape = arguments.shape;
  if (shape.token_elements() <= 0) return;
  const int64_t tile = tokens_per_tile(shape.token_elements());
  const int64_t floats = scratch_floats(shape);
  team.parallel_for(ceil_divide(shape.tokens, tile), [&](int64_t index, int thread) {
    HWY_DYNAMIC_DISPATCH(norm_tokens)
    (arguments, index * tile, std::min(shape.tokens, (index + 1) * tile),
     reinterpret_cast<float*>(workspace) + thread * floats);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
