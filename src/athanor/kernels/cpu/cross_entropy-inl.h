// Rows of logits and their gradients, for the loss of a whole vocabulary and of a part of one. Compiled once
// per target; included after foreach_target.h.
#if defined(ATHANOR_KERNELS_CPU_CROSS_ENTROPY_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_CROSS_ENTROPY_INL_H
#undef ATHANOR_KERNELS_CPU_CROSS_ENTROPY_INL_H
#else
#define ATHANOR_KERNELS_CPU_CROSS_ENTROPY_INL_H
#endif

#include <limits>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

constexpr float minus_infinity = -std::numeric_limits<float>::infinity();

// The logits of one row, capped, chunk by chunk.
class Logits {
 public:
  Logits(ConstSpan row, double soft_cap) : source_(row), cap_(static_cast<float>(soft_cap)) {}
  const float* get(int64_t first, int64_t count) {
    const float* raw = source_.get(first, count);
    if (cap_ == 0) return raw;
    const Float cap = splat(cap_), inverse = splat(1 / cap_);
    float* capped = capped_;
    for_vectors(count, [=](int64_t j, auto extent) HWY_ATTR {
      store(hn::Mul(cap, hyperbolic_tangent(hn::Mul(load(raw + j, extent), inverse))), capped + j, extent);
    });
    return capped_;
  }

 private:
  Source source_;
  float cap_;
  HWY_ALIGN float capped_[chunk_elements];
};

HWY_INLINE float maximum_of(const float* values, int64_t count) {
  Float maximum = splat(minus_infinity);
  for_vectors(
      count, [&](int64_t j, Whole extent) HWY_ATTR { maximum = hn::Max(maximum, load(values + j, extent)); },
      [&](int64_t j, Part extent) HWY_ATTR {
        const auto used = hn::FirstN(FloatTag(), static_cast<size_t>(extent.count));
        maximum = hn::Max(maximum, hn::IfThenElse(used, load(values + j, extent), splat(minus_infinity)));
      });
  return hn::GetLane(hn::MaxOfLanes(FloatTag(), maximum));
}

// d loss / d logits of one row: (factor e^(c - shift) - uniform - of_label [j = label]) times d c / d logits.
struct LogitGradient {
  float shift = 0;
  double factor = 0, uniform = 0, of_label = 0, soft_cap = 0;
  int64_t label = -1;  // column; outside of the row: no column's

  // Columns [0, count) to `to`, which may be the memory of the logits.
  void write(Logits& logits, int64_t count, Span to) const {
    const Float shifts = splat(shift), factors = splat(static_cast<float>(factor)),
                uniforms = splat(static_cast<float>(uniform));
    const auto cap = static_cast<float>(soft_cap);
    const Float inverse_cap = splat(cap == 0 ? 0 : 1 / cap);
    Sink sink(to);
    for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
      const float* c = logits.get(i, n);
      float* d = sink.get(i);
      const bool labelled = label >= i && label < i + n;
      const float label_logit = labelled ? c[label - i] : 0;  // before d, maybe the same memory
      for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
        const Float value = load(c + j, extent);
        Float gradient = hn::MulSub(exponential(hn::Sub(value, shifts)), factors, uniforms);
        if (cap != 0) {  // d c / d logit = 1 - tanh^2
          const Float tanh = hn::Mul(value, inverse_cap);
          gradient = hn::Mul(gradient, hn::NegMulAdd(tanh, tanh, splat(1)));
        }
        store(gradient, d + j, extent);
      });
      if (labelled) {
        const float tanh = cap == 0 ? 0 : label_logit / cap;
        d[label - i] -= static_cast<float>(of_label) * (1 - tanh * tanh);
      }
      sink.put(d, i, n);
    });
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
