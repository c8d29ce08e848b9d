// What every Highway kernel here shares: loops over vectors with a tail, widening to and narrowing from the
// storage types, sums in a fixed order, exp and its relatives. Compiled once per target; included inside the
// file of a kernel after foreach_target.h.
//
// Sums run in vector lanes, so their bits depend on the instruction set, and on nothing else.
#if defined(ATHANOR_KERNELS_CPU_VECTOR_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_VECTOR_INL_H
#undef ATHANOR_KERNELS_CPU_VECTOR_INL_H
#else
#define ATHANOR_KERNELS_CPU_VECTOR_INL_H
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "athanor/ir/dtype.h"
#include "athanor/kernels/cpu/rows.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using Float = hn::Vec<FloatTag>;
using DoubleTag = hn::ScalableTag<double>;
using Double = hn::Vec<DoubleTag>;
// On x86 a vector has as many lanes as it can have.
inline constexpr int64_t float_lanes = static_cast<int64_t>(hn::MaxLanes(FloatTag()));
inline constexpr int64_t double_lanes = static_cast<int64_t>(hn::MaxLanes(DoubleTag()));

HWY_INLINE Float splat(float value) {
  return hn::Set(FloatTag(), value);
}
HWY_INLINE Float zero() {
  return hn::Zero(FloatTag());
}

// How much of a vector is in use: all of it, or the first `count` lanes of the last one.
struct Whole {};
struct Part {
  int64_t count;
};

HWY_INLINE Float load(const float* from, Whole) {
  return hn::LoadU(FloatTag(), from);
}
HWY_INLINE Float load(const float* from, Part part) {
  HWY_ALIGN float lanes[static_cast<size_t>(float_lanes)] = {};
  std::memcpy(lanes, from, static_cast<size_t>(part.count) * sizeof(float));
  return hn::Load(FloatTag(), lanes);
}
HWY_INLINE void store(Float value, float* to, Whole) {
  hn::StoreU(value, FloatTag(), to);
}
HWY_INLINE void store(Float value, float* to, Part part) {
  HWY_ALIGN float lanes[static_cast<size_t>(float_lanes)];
  hn::Store(value, FloatTag(), lanes);
  std::memcpy(to, lanes, static_cast<size_t>(part.count) * sizeof(float));
}
// Zero in the lanes that are not in use.
HWY_INLINE Float only(Float value, Whole) {
  return value;
}
HWY_INLINE Float only(Float value, Part part) {
  return hn::IfThenElseZero(hn::FirstN(FloatTag(), static_cast<size_t>(part.count)), value);
}

// Calls body(first, Whole or Part) for vectors that cover [0, count).
template <class Body>
HWY_INLINE void for_vectors(int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + float_lanes <= count; i += float_lanes) body(i, Whole{});
  if (i < count) body(i, Part{count - i});
}

// The same with a body of its own for the tail.
template <class Body, class Tail>
HWY_INLINE void for_vectors(int64_t count, Body&& body, Tail&& tail) {
  int64_t i = 0;
  for (; i + float_lanes <= count; i += float_lanes) body(i, Whole{});
  if (i < count) tail(i, Part{count - i});
}

// Sum over [0, count) of the lanes of value(first, extent); unused lanes must be zero (see only()). Blocks of
// 2048 are summed in fp32, in four accumulators, and the blocks in fp64: an order fixed by `count`.
template <class Value>
HWY_INLINE double sum_vectors(int64_t count, Value&& value) {
  constexpr int64_t block = 2048;
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += block) {
    const int64_t end = std::min(count, begin + block);
    Float sum0 = zero(), sum1 = zero(), sum2 = zero(), sum3 = zero();
    int64_t i = begin;
    for (; i + 4 * float_lanes <= end; i += 4 * float_lanes) {
      sum0 = hn::Add(sum0, value(i, Whole{}));
      sum1 = hn::Add(sum1, value(i + float_lanes, Whole{}));
      sum2 = hn::Add(sum2, value(i + 2 * float_lanes, Whole{}));
      sum3 = hn::Add(sum3, value(i + 3 * float_lanes, Whole{}));
    }
    for (; i + float_lanes <= end; i += float_lanes) sum0 = hn::Add(sum0, value(i, Whole{}));
    if (i < end) sum1 = hn::Add(sum1, value(i, Part{end - i}));
    const Float all = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
    total += static_cast<double>(hn::GetLane(hn::SumOfLanes(FloatTag(), all)));
  }
  return total;
}

// Sum of the squares of [0, count) in fp64, in four accumulators.
HWY_INLINE double sum_of_squares(const float* values, int64_t count) {
  const DoubleTag d;
  const hn::Rebind<float, DoubleTag> floats;
  Double sum0 = hn::Zero(d), sum1 = hn::Zero(d), sum2 = hn::Zero(d), sum3 = hn::Zero(d);
  const auto add_square = [&](Double sum, const float* at) HWY_ATTR {
    const Double value = hn::PromoteTo(d, hn::LoadU(floats, at));
    return hn::MulAdd(value, value, sum);
  };
  int64_t i = 0;
  for (; i + 4 * double_lanes <= count; i += 4 * double_lanes) {
    sum0 = add_square(sum0, values + i);
    sum1 = add_square(sum1, values + i + double_lanes);
    sum2 = add_square(sum2, values + i + 2 * double_lanes);
    sum3 = add_square(sum3, values + i + 3 * double_lanes);
  }
  double rest = 0;
  for (; i < count; ++i) rest += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  const Double all = hn::Add(hn::Add(sum0, sum1), hn::Add(sum2, sum3));
  return hn::GetLane(hn::SumOfLanes(d, all)) + rest;
}

// bfloat16 bits of fp32 lanes, rounded to nearest even; NaN stays NaN.
HWY_INLINE hn::Vec<hn::Rebind<uint16_t, FloatTag>> bfloat16_bits(Float value) {
  const hn::RebindToUnsigned<FloatTag> words;
  const auto bits = hn::BitCast(words, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7fff)));
  const auto quiet = hn::Or(bits, hn::Set(words, 0x400000));
  const auto chosen = hn::IfThenElse(hn::RebindMask(words, hn::IsNaN(value)), quiet, rounded);
  const hn::RebindToSigned<FloatTag> integers;
  return hn::DemoteTo(hn::Rebind<uint16_t, FloatTag>(), hn::BitCast(integers, hn::ShiftRight<16>(chosen)));
}

HWY_INLINE Float float_from_bfloat16(hn::Vec<hn::Rebind<uint16_t, FloatTag>> bits) {
  return hn::BitCast(FloatTag(), hn::ShiftLeft<16>(hn::PromoteTo(hn::RebindToUnsigned<FloatTag>(), bits)));
}

// The fp32 values of `count` <= chunk_elements elements at `from`: `from` itself when it is fp32, else
// `buffer`.
inline const float* widen(const std::byte* from, DType dtype, int64_t count, float* HWY_RESTRICT buffer) {
  const hn::Rebind<uint16_t, FloatTag> halves;
  switch (dtype) {
    case DType::fp32:
      return reinterpret_cast<const float*>(from);
    case DType::bf16: {
      const auto* source = reinterpret_cast<const uint16_t*>(from);
      int64_t i = 0;
      for (; i + float_lanes <= count; i += float_lanes)
        hn::StoreU(float_from_bfloat16(hn::LoadU(halves, source + i)), FloatTag(), buffer + i);
      for (; i < count; ++i) buffer[i] = static_cast<float>(reinterpret_cast<const BFloat16*>(from)[i]);
      return buffer;
    }
    case DType::fp16: {
      int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
      const hn::Rebind<hwy::float16_t, FloatTag> float16s;
      const auto* source = reinterpret_cast<const uint16_t*>(from);
      for (; i + float_lanes <= count; i += float_lanes) {
        const auto bits = hn::BitCast(float16s, hn::LoadU(halves, source + i));
        hn::StoreU(hn::PromoteTo(FloatTag(), bits), FloatTag(), buffer + i);
      }
#endif
      for (; i < count; ++i) buffer[i] = static_cast<float>(reinterpret_cast<const Float16*>(from)[i]);
      return buffer;
    }
    case DType::fp64:
      for (int64_t i = 0; i < count; ++i)
        buffer[i] = static_cast<float>(reinterpret_cast<const double*>(from)[i]);
      return buffer;
    default:
      unsupported_type(dtype);
  }
}

// Stores `count` fp32 values as `dtype`, rounded to nearest even. `from` may be `to` when that is fp32.
inline void narrow(const float* from, std::byte* to, DType dtype, int64_t count) {
  const hn::Rebind<uint16_t, FloatTag> halves;
  switch (dtype) {
    case DType::fp32:
      if (reinterpret_cast<const std::byte*>(from) != to)
        std::memcpy(to, from, static_cast<size_t>(count) * sizeof(float));
      return;
    case DType::bf16: {
      auto* target = reinterpret_cast<uint16_t*>(to);
      int64_t i = 0;
      for (; i + float_lanes <= count; i += float_lanes)
        hn::StoreU(bfloat16_bits(hn::LoadU(FloatTag(), from + i)), halves, target + i);
      for (; i < count; ++i) target[i] = BFloat16(from[i]).bits;
      return;
    }
    case DType::fp16: {
      auto* target = reinterpret_cast<uint16_t*>(to);
      int64_t i = 0;
#if HWY_TARGET != HWY_SCALAR && HWY_TARGET != HWY_EMU128
      const hn::Rebind<hwy::float16_t, FloatTag> float16s;
      for (; i + float_lanes <= count; i += float_lanes) {
        const auto value = hn::DemoteTo(float16s, hn::LoadU(FloatTag(), from + i));
        hn::StoreU(hn::BitCast(halves, value), halves, target + i);
      }
#endif
      for (; i < count; ++i) target[i] = Float16(from[i]).bits;
      return;
    }
    case DType::fp64:
      for (int64_t i = 0; i < count; ++i) reinterpret_cast<double*>(to)[i] = static_cast<double>(from[i]);
      return;
    default:
      unsupported_type(dtype);
  }
}

// An operand that is read, or written, chunk by chunk as fp32.
class Source {
 public:
  explicit Source(ConstSpan span) : span_(span), size_(static_cast<int64_t>(size_of(span.dtype))) {}
  // Elements [first, first + count), count <= chunk_elements; valid until the next call.
  const float* get(int64_t first, int64_t count) {
    return widen(span_.data + first * size_, span_.dtype, count, buffer_);
  }

 private:
  ConstSpan span_;
  int64_t size_;
  HWY_ALIGN float buffer_[chunk_elements];
};

class Sink {
 public:
  explicit Sink(Span span) : span_(span), size_(static_cast<int64_t>(size_of(span.dtype))) {}
  // Where to write the chunk that starts at `first`; put() then stores it.
  float* get(int64_t first) {
    return span_.dtype == DType::fp32 ? reinterpret_cast<float*>(span_.data + first * size_) : buffer_;
  }
  void put(const float* chunk, int64_t first, int64_t count) {
    narrow(chunk, span_.data + first * size_, span_.dtype, count);
  }

 private:
  Span span_;
  int64_t size_;
  HWY_ALIGN float buffer_[chunk_elements];
};

// Calls body(first, count) for chunks that cover [0, count).
template <class Body>
HWY_INLINE void for_chunks(int64_t count, Body&& body) {
  for (int64_t i = 0; i < count; i += chunk_elements) body(i, std::min(chunk_elements, count - i));
}

// e^x, error below 1.5 units in the last place; 0 below -87.3 (results that would be subnormal), e^88.3 above
// 88.3; NaN stays NaN. Polynomial fitted for least relative error on half a binade around 0.
HWY_INLINE Float exponential(Float x) {
  const hn::RebindToSigned<FloatTag> integers;
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  const Float capped = hn::IfThenElse(hn::Gt(x, splat(88.3f)), splat(88.3f), x);
#else
  const Float capped = hn::Min(splat(88.3f), x);  // these instructions give the second operand if one is NaN
#endif
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits.
  const Float shifted = hn::MulAdd(capped, splat(1.44269504f), splat(12582912.0f));
  const Float whole = hn::Sub(shifted, splat(12582912.0f));
  Float rest = hn::NegMulAdd(whole, splat(0.693359375f), capped);  // ln 2 in two pieces, the first exact
  rest = hn::NegMulAdd(whole, splat(-2.12194440e-4f), rest);
  Float sum = hn::MulAdd(rest, splat(1.3814191e-3f), splat(8.3689137e-3f));
  sum = hn::MulAdd(sum, rest, splat(4.1668407e-2f));
  sum = hn::MulAdd(sum, rest, splat(0.16666519f));
  sum = hn::MulAdd(sum, rest, splat(0.49999993f));
  sum = hn::MulAdd(sum, hn::Mul(rest, rest), rest);
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(integers, shifted));
  const Float scale = hn::BitCast(FloatTag(), hn::Add(exponent, hn::Set(integers, 127 << 23)));
  return hn::IfThenElse(hn::Lt(x, splat(-87.3f)), zero(), hn::MulAdd(sum, scale, scale));
}

// 1 / (1 + e^-x).
HWY_INLINE Float sigmoid(Float x) {
  return hn::Div(splat(1), hn::Add(splat(1), exponential(hn::Neg(x))));
}

// Hyperbolic tangent: an odd polynomial near 0, where 1 - 2 / (e^2x + 1) would cancel.
HWY_INLINE Float hyperbolic_tangent(Float x) {
  const Float square = hn::Mul(x, x);
  Float sum = hn::MulAdd(square, splat(2.0646652e-3f), splat(-8.0919685e-3f));
  sum = hn::MulAdd(sum, square, splat(2.1666347e-2f));
  sum = hn::MulAdd(sum, square, splat(-5.3940563e-2f));
  sum = hn::MulAdd(sum, square, splat(0.13333158f));
  sum = hn::MulAdd(sum, square, splat(-0.3333333f));
  const Float near = hn::MulAdd(hn::Mul(sum, square), x, x);
  const Float power = exponential(hn::Add(x, x));
  const Float far = hn::Sub(splat(1), hn::Div(splat(2), hn::Add(power, splat(1))));
  return hn::IfThenElse(hn::Lt(hn::Abs(x), splat(0.625f)), near, far);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
