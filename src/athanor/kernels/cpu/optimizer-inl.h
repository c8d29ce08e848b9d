// What the optimizers share within a tile: publishing new weights, and Adam's moments.
#if defined(ATHANOR_KERNELS_CPU_OPTIMIZER_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_OPTIMIZER_INL_H
#undef ATHANOR_KERNELS_CPU_OPTIMIZER_INL_H
#else
#define ATHANOR_KERNELS_CPU_OPTIMIZER_INL_H
#endif

#include <cmath>

#include "athanor/kernels/cpu/optimizer.h"
#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// Follows the weights [first, first + count) with their average and their working copy.
HWY_INLINE void publish(const BucketUpdate& update, int64_t first, int64_t count) {
  const float* weights = update.master + first;
  if (update.average != nullptr) {
    float* average = update.average + first;
    const Float take = splat(static_cast<float>(1 - update.average_decay));
    for_vectors(count, [&](int64_t j, auto extent) HWY_ATTR {
      // Not average * decay + weight * (1 - decay): in fp32 these two factors do not add up to 1.
      const Float before = load(average + j, extent);
      store(hn::MulAdd(hn::Sub(load(weights + j, extent), before), take, before), average + j, extent);
    });
  }
  if (update.working.data != nullptr) {
    const auto size = static_cast<int64_t>(size_of(update.working.dtype));
    narrow(weights, update.working.data + first * size, update.working.dtype, count);
  }
}

// Adam's moments after one more gradient, and the direction m' / (sqrt(v') + epsilon).
class Adam {
 public:
  Adam(const AdamOptions& o, double gradient_factor)
      : factor_(splat(static_cast<float>(gradient_factor))),
        keep1_(splat(static_cast<float>(o.beta1))),
        take1_(splat(static_cast<float>(1 - o.beta1))),
        keep2_(splat(static_cast<float>(o.beta2))),
        take2_(splat(static_cast<float>(1 - o.beta2))),
        correction1_(splat(static_cast<float>(1 / (1 - std::pow(o.beta1, static_cast<double>(o.step)))))),
        correction2_(
            splat(static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(o.step)))))),
        epsilon_(splat(static_cast<float>(o.epsilon))) {}

  HWY_INLINE Float gradient(Float raw) const { return hn::Mul(raw, factor_); }
  HWY_INLINE Float first(Float moment, Float g) const {
    return hn::MulAdd(moment, keep1_, hn::Mul(g, take1_));
  }
  HWY_INLINE Float second(Float moment, Float g) const {
    return hn::MulAdd(moment, keep2_, hn::Mul(hn::Mul(g, g), take2_));
  }
  HWY_INLINE Float direction(Float first_moment, Float second_moment) const {
    const Float root = hn::MulAdd(hn::Sqrt(second_moment), correction2_, epsilon_);
    return hn::Div(hn::Mul(first_moment, correction1_), root);
  }

 private:
  Float factor_, keep1_, take1_, keep2_, take2_, correction1_, correction2_, epsilon_;
};

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
