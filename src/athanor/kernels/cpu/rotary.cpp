#include "athanor/kernels/cpu/rotary.h"

#include <cmath>
#include <numbers>

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/rotary.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// cosines and sines of position * frequencies[0 .. count), count a multiple of 16. Angles lose whole quarter
// turns in fp64 (pi/2 in two pieces; the product with the first is exact up to 2^20 quarter turns), then
// polynomials on [-pi/4, pi/4] in fp32.
void turn(int32_t position, const double* frequencies, int64_t count, float* HWY_RESTRICT cosines,
          float* HWY_RESTRICT sines) {
  const DoubleTag dd;
  const hn::Rebind<float, DoubleTag> narrow_floats;
  const FloatTag d;
  const Double at = hn::Set(dd, static_cast<double>(position));
  for (int64_t i = 0; i < count; i += double_lanes) {
    const Double angle = hn::Mul(at, hn::LoadU(dd, frequencies + i));
    const Double quarter = hn::Round(hn::Mul(angle, hn::Set(dd, 2 / std::numbers::pi)));
    Double rest = hn::Sub(angle, hn::Mul(quarter, hn::Set(dd, 1.57079632673412561417)));
    rest = hn::Sub(rest, hn::Mul(quarter, hn::Set(dd, 6.07710050650619224932e-11)));
    const Double turns = hn::Mul(hn::Set(dd, 4.0), hn::Floor(hn::Mul(quarter, hn::Set(dd, 0.25))));
    hn::StoreU(hn::DemoteTo(narrow_floats, rest), narrow_floats, cosines + i);
    hn::StoreU(hn::DemoteTo(narrow_floats, hn::Sub(quarter, turns)), narrow_floats,
               sines + i);  // 0, 1, 2 or 3
  }
  for (int64_t i = 0; i < count; i += float_lanes) {
    const Float x = hn::LoadU(d, cosines + i), quarter = hn::LoadU(d, sines + i), square = hn::Mul(x, x);
    Float sine = hn::MulAdd(square, splat(-1.9516480e-4f), splat(8.3321723e-3f));
    sine = hn::MulAdd(sine, square, splat(-0.16666655f));
    sine = hn::MulAdd(hn::Mul(sine, square), x, x);
    Float cosine = hn::MulAdd(square, splat(2.4437533e-5f), splat(-1.3887360e-3f));
    cosine = hn::MulAdd(cosine, square, splat(4.1666647e-2f));
    cosine = hn::MulAdd(cosine, square, splat(-0.5f));
    cosine = hn::MulAdd(cosine, square, splat(1));
    const auto one = hn::Eq(quarter, splat(1)), two = hn::Eq(quarter, splat(2)),
               three = hn::Eq(quarter, splat(3));
    const auto swapped = hn::Or(one, three);
    const Float s = hn::IfThenElse(swapped, cosine, sine), c = hn::IfThenElse(swapped, sine, cosine);
    hn::StoreU(hn::IfThenElse(hn::Or(two, three), hn::Neg(s), s), d, sines + i);
    hn::StoreU(hn::IfThenElse(hn::Or(one, two), hn::Neg(c), c), d, cosines + i);
  }
}

// Scratch: cosines, sines, one token.
void rotary_tokens(const Rotary& a, const double* frequencies, int64_t begin, int64_t end, float* scratch) {
  const int64_t half = a.head_features / 2, padded = align_floats(half), width = a.heads * a.head_features;
  float *cosines = scratch, *sines = scratch + padded, *token_scratch = scratch + 2 * padded;
  for (int64_t token = begin; token < end; ++token) {
    const int32_t position = a.positions[token];
    turn(a.options.inverse ? -position : position, frequencies, padded, cosines, sines);
    const Span y = a.y.at(token);
    const float* from = widen(a.x.at(token).data, a.x.dtype, width, token_scratch);
    float* to = y.dtype == DType::fp32 ? reinterpret_cast<float*>(y.data) : token_scratch;
    for (int64_t head = 0; head < a.heads; ++head) {
      const float* x = from + head * a.head_features;
      float* out = to + head * a.head_features;
      for_vectors(half, [&](int64_t j, auto extent) HWY_ATTR {
        const Float c = load(cosines + j, extent), s = load(sines + j, extent);
        const Float left = load(x + j, extent), right = load(x + half + j, extent);
        store(hn::NegMulAdd(right, s, hn::Mul(left, c)), out + j, extent);
        store(hn::MulAdd(left, s, hn::Mul(right, c)), out + half + j, extent);
      });
      if (a.head_features % 2 != 0) out[a.head_features - 1] = x[a.head_features - 1];
    }
    narrow(to, y.data, y.dtype, width);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(rotary_tokens);

namespace {

int64_t scratch_floats(int64_t heads, int64_t head_features) {
  return 2 * align_floats(head_features / 2) + align_floats(heads * head_features);
}

}  // namespace

void rotary_frequencies(const RotaryOptions& options, int64_t head_features, double* frequencies) {
  for (int64_t i = 0; i < head_features / 2; ++i) {
    double frequency =
        std::pow(options.theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_features));
    if (options.factor != 1) {
      // Turns that the pair makes over the positions the model was first trained on.
      const double turns =
          static_cast<double>(options.original_positions) * frequency / (2 * std::numbers::pi);
      if (turns < options.low_frequency) {
        frequency /= options.factor;
      } else if (turns <= options.high_frequency) {
        const double kept =
            (turns - options.low_frequency) / (options.high_frequency - options.low_frequency);
        frequency = (1 - kept) * frequency / options.factor + kept * frequency;
      }
    }
    frequencies[i] = frequency;
  }
}

int64_t rotary_workspace_bytes(int64_t heads, int64_t head_features, int threads) {
  return align_floats(head_features / 2) * static_cast<int64_t>(sizeof(double)) +
         threads * scratch_floats(heads, head_features) * static_cast<int64_t>(sizeof(float));
}

void rotary(ThreadTeam& team, const Rotary& arguments, std::byte* workspace) {
  const int64_t features = arguments.head_features;
  if (features == 0 || arguments.heads == 0) return;
  auto* frequencies = reinterpret_cast<double*>(workspace);
  const int64_t padded = align_floats(features / 2), floats = scratch_floats(arguments.heads, features);
  std::fill_n(frequencies, padded, 0.0);
  rotary_frequencies(arguments.options, features, frequencies);
  auto* scratch = reinterpret_cast<float*>(frequencies + padded);
  const int64_t tile = tokens_per_tile(arguments.heads * features);
  team.parallel_for(ceil_divide(arguments.tokens, tile), [&](int64_t index, int thread) {
    HWY_DYNAMIC_DISPATCH(rotary_tokens)
    (arguments, frequencies, index * tile, std::min(arguments.tokens, (index + 1) * tile),
     scratch + thread * floats);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
