#include "athanor/kernels/cpu/vector_product.h"

#include "athanor/kernels/cpu/highway_targets.h"
#include "athanor/kernels/cpu/matmul_tile.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/vector_product.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// K is taken in steps of two vectors, each with an accumulator of its own. Rows of the weight that are
// read side by side: enough sums in flight for two multipliers, few enough streams to be read ahead.
constexpr int64_t step_lanes = 2 * float_lanes;
constexpr int64_t rows_at_once = 4;
constexpr int64_t bytes_ahead = 1024;  // of each row that is being read

// The two vectors of a step of a row. Of bf16 the even elements and the odd ones, which takes two cheap
// instructions where keeping the order would take four; x is laid out alike.
struct FloatPair {
  Float first, second;
};
HWY_INLINE FloatPair load_step(const float* row) {
  return {hn::LoadU(FloatTag(), row), hn::LoadU(FloatTag(), row + float_lanes)};
}
HWY_INLINE FloatPair load_step(const BFloat16* row) {
  const hn::RebindToUnsigned<FloatTag> words;
  const auto both = hn::LoadU(words, reinterpret_cast<const uint32_t*>(row));
  return {hn::BitCast(FloatTag(), hn::ShiftLeft<16>(both)),
          hn::BitCast(FloatTag(), hn::And(both, hn::Set(words, 0xffff0000u)))};
}
HWY_INLINE FloatPair load_step(const Float16* row) {
  HWY_ALIGN float wide[static_cast<size_t>(step_lanes)];
  widen(reinterpret_cast<const std::byte*>(row), DType::fp16, step_lanes, wide);
  return {hn::Load(FloatTag(), wide), hn::Load(FloatTag(), wide + float_lanes)};
}

// One row of x as fp32, padded with zeros to whole steps, in the order of load_step.
void lay_out_vector(ConstSpan x, int64_t count, bool pairs, float* to) {
  Source source(x);
  for_chunks(count, [&](int64_t first, int64_t chunk) HWY_ATTR {
    std::memcpy(to + first, source.get(first, chunk), static_cast<size_t>(chunk) * sizeof(float));
  });
  const int64_t padded = ceil_divide(count, step_lanes) * step_lanes;
  std::fill(to + count, to + padded, 0.0F);
  if (!pairs) return;
  HWY_ALIGN float step[static_cast<size_t>(step_lanes)];
  for (int64_t k = 0; k < padded; k += step_lanes) {
    std::memcpy(step, to + k, sizeof step);
    for (int64_t i = 0; i < float_lanes; ++i) {
      to[k + i] = step[2 * i];
      to[k + float_lanes + i] = step[2 * i + 1];
    }
  }
}

// sums[token * sums_stride + r] for `height` rows of the weight and `tokens` rows of x.
template <class T, int64_t height, int64_t tokens>
HWY_INLINE void multiply_rows(const T* weight, int64_t weight_stride, const float* x, int64_t x_stride,
                              int64_t inputs, float* sums, int64_t sums_stride) {
  constexpr auto rows = static_cast<size_t>(height), columns = static_cast<size_t>(tokens);
  Float first[rows][columns], second[rows][columns];
#pragma GCC unroll 4
  for (int64_t r = 0; r < height; ++r) {
#pragma GCC unroll 2
    for (int64_t t = 0; t < tokens; ++t) first[r][t] = second[r][t] = zero();
  }
  const int64_t whole = inputs / step_lanes * step_lanes;
  for (int64_t k = 0; k < whole; k += step_lanes) {
#pragma GCC unroll 4
    for (int64_t r = 0; r < height; ++r) {
      const T* row = weight + r * weight_stride + k;
      __builtin_prefetch(reinterpret_cast<const std::byte*>(row) + bytes_ahead);
      const FloatPair w = load_step(row);
#pragma GCC unroll 2
      for (int64_t t = 0; t < tokens; ++t) {
        const float* vector = x + t * x_stride + k;
        first[r][t] = hn::MulAdd(w.first, hn::LoadU(FloatTag(), vector), first[r][t]);
        second[r][t] = hn::MulAdd(w.second, hn::LoadU(FloatTag(), vector + float_lanes), second[r][t]);
      }
    }
  }
  if (whole < inputs) {
#pragma GCC unroll 4
    for (int64_t r = 0; r < height; ++r) {
      T rest[static_cast<size_t>(step_lanes)] = {};
      std::memcpy(static_cast<void*>(rest), weight + r * weight_stride + whole,
                  static_cast<size_t>(inputs - whole) * sizeof(T));
      const FloatPair w = load_step(rest);
#pragma GCC unroll 2
      for (int64_t t = 0; t < tokens; ++t) {
        const float* vector = x + t * x_stride + whole;
        first[r][t] = hn::MulAdd(w.first, hn::LoadU(FloatTag(), vector), first[r][t]);
        second[r][t] = hn::MulAdd(w.second, hn::LoadU(FloatTag(), vector + float_lanes), second[r][t]);
      }
    }
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < height; ++r) {
#pragma GCC unroll 2
    for (int64_t t = 0; t < tokens; ++t)
      sums[t * sums_stride + r] = hn::GetLane(hn::SumOfLanes(FloatTag(), hn::Add(first[r][t], second[r][t])));
  }
}

template <class T, int64_t height>
void multiply_tokens(const T* weight, int64_t weight_stride, const float* x, int64_t x_stride, int64_t tokens,
                     int64_t inputs, float* sums, int64_t sums_stride) {
#if HWY_TARGET == HWY_AVX3
  constexpr int64_t tokens_at_once = 2;  // of 32 registers 16 hold sums
#else
  constexpr int64_t tokens_at_once = 1;
#endif
  int64_t t = 0;
  for (; t + tokens_at_once <= tokens; t += tokens_at_once) {
    multiply_rows<T, height, tokens_at_once>(weight, weight_stride, x + t * x_stride, x_stride, inputs,
                                             sums + t * sums_stride, sums_stride);
  }
  for (; t < tokens; ++t) {
    multiply_rows<T, height, 1>(weight, weight_stride, x + t * x_stride, x_stride, inputs,
                                sums + t * sums_stride, sums_stride);
  }
}

template <class T>
void multiply_typed(const T* weight, int64_t weight_stride, int64_t rows, const float* x, int64_t x_stride,
                    int64_t tokens, int64_t inputs, float* sums, int64_t sums_stride) {
  int64_t r = 0;
  for (; r + rows_at_once <= rows; r += rows_at_once) {
    multiply_tokens<T, rows_at_once>(weight + r * weight_stride, weight_stride, x, x_stride, tokens, inputs,
                                     sums + r, sums_stride);
  }
  for (; r < rows; ++r) {
    multiply_tokens<T, 1>(weight + r * weight_stride, weight_stride, x, x_stride, tokens, inputs, sums + r,
                          sums_stride);
  }
}

void multiply_vectors(ConstRows weight, int64_t rows, const float* x, int64_t x_stride, int64_t tokens,
                      int64_t inputs, float* sums, int64_t sums_stride) {
  const auto multiply = [&](const auto* data) {
    multiply_typed(data, weight.stride, rows, x, x_stride, tokens, inputs, sums, sums_stride);
  };
  switch (weight.dtype) {
    case DType::fp32:
      return multiply(reinterpret_cast<const float*>(weight.data));
    case DType::bf16:
      return multiply(reinterpret_cast<const BFloat16*>(weight.data));
    case DType::fp16:
      return multiply(reinterpret_cast<const Float16*>(weight.data));
    default:
      unsupported_type(weight.dtype);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(lay_out_vector);
HWY_EXPORT(multiply_vectors);

namespace {

constexpr int64_t longest_step = 32;  // floats, of any instruction set

// Rows of the weight in a tile: some tens of microseconds of reading, against less than one to hand it out.
int64_t tile_rows(int64_t outputs, int64_t inputs, DType weight) {
  constexpr int64_t tile_bytes = 96 * 1024, unit = 4;
  const int64_t row_bytes = std::max<int64_t>(1, inputs * static_cast<int64_t>(size_of(weight)));
  return std::min(std::max<int64_t>(1, tile_bytes / row_bytes / unit) * unit,
                  std::max<int64_t>(unit, ceil_divide(outputs, unit) * unit));
}

int64_t padded_inputs(int64_t inputs) {
  return ceil_divide(inputs, longest_step) * longest_step;
}

}  // namespace

int64_t vector_product_workspace_bytes(int64_t tokens, int64_t outputs, int64_t inputs, DType weight,
                                       int threads) {
  const int64_t sums = align_floats(tile_rows(outputs, inputs, weight)) * tokens * threads;
  return (tokens * padded_inputs(inputs) + sums) * static_cast<int64_t>(sizeof(float));
}

void vector_product(ThreadTeam& team, const VectorProduct& a, std::byte* workspace) {
  if (a.tokens == 0 || a.outputs == 0) return;
  auto* const x = reinterpret_cast<float*>(workspace);
  const int64_t x_stride = padded_inputs(a.inputs), height = tile_rows(a.outputs, a.inputs, a.weight.dtype);
  for (int64_t token = 0; token < a.tokens; ++token) {
    HWY_DYNAMIC_DISPATCH(lay_out_vector)
    (a.x.at(token), a.inputs, a.weight.dtype == DType::bf16, x + token * x_stride);
  }
  const int64_t sums_stride = align_floats(height);
  team.parallel_for(ceil_divide(a.outputs, height), [&](int64_t tile, int thread) {
    const int64_t row = tile * height, rows = std::min(height, a.outputs - row);
    float* const sums = x + a.tokens * x_stride + thread * sums_stride * a.tokens;
    const ConstRows weight{a.weight.at(row).data, a.weight.dtype, a.weight.stride};
    HWY_DYNAMIC_DISPATCH(multiply_vectors)
    (weight, rows, x, x_stride, a.tokens, a.inputs, sums, sums_stride);
    const ConstSpan bias =
        a.bias.data == nullptr ? a.bias : ConstRows{a.bias.data, a.bias.dtype, 0}.at(0, row);
    const auto columns = [&](const Rows& whole) {
      return whole.present() ? Rows{whole.at(0, row).data, whole.dtype, whole.stride} : whole;
    };
    finish_tile(a.tokens, rows, sums, sums_stride, bias, {}, columns(a.y), columns(a.activated));
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
