#include "athanor/kernels/cpu/cross_entropy.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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

struct RowStatistics {
  float maximum = minus_infinity;
  double exponentials = 0;  // sum of e^(c - maximum)
  double total = 0;         // sum of c
};

// First pass. A chunk that raises the maximum rescales what was summed before it.
HWY_INLINE RowStatistics statistics_of(Logits& logits, int64_t vocabulary, bool with_total) {
  RowStatistics result;
  for_chunks(vocabulary, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* c = logits.get(i, n);
    if (with_total)
      result.total += sum_vectors(n, [&](int64_t j, auto extent) HWY_ATTR { return load(c + j, extent); });
    const float maximum = std::max(result.maximum, maximum_of(c, n));
    if (maximum == minus_infinity) return;  // nothing but masked logits so far
    if (maximum > result.maximum) {
      result.exponentials *= std::exp(static_cast<double>(result.maximum) - static_cast<double>(maximum));
      result.maximum = maximum;
    }
    const Float shift = splat(maximum);
    result.exponentials += sum_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      return only(exponential(hn::Sub(load(c + j, extent), shift)), extent);
    });
  });
  return result;
}

// Loss of one row whose label is valid, and its gradient times `gradient_scale`.
float cross_entropy_row(const CrossEntropy& a, int64_t row, double gradient_scale) {
  Logits logits(a.logits.at(row), a.soft_cap);
  const int64_t label = a.labels[row];
  const double smoothing = a.label_smoothing, vocabulary = static_cast<double>(a.vocabulary);
  const RowStatistics row_statistics = statistics_of(logits, a.vocabulary, smoothing != 0);
  const double log_sum = static_cast<double>(row_statistics.maximum) + std::log(row_statistics.exponentials);
  const auto target = static_cast<double>(*logits.get(label, 1));
  double loss = (1 - smoothing) * (log_sum - target) + a.z_loss * log_sum * log_sum;
  if (smoothing != 0) loss += smoothing * (log_sum - row_statistics.total / vocabulary);
  if (!a.dlogits.present()) return static_cast<float>(loss);

  // d loss / d c[j] = (1 + 2 z L) e^(c[j] - L) - smoothing / V - (1 - smoothing) [j = label].
  const Float shift = splat(row_statistics.maximum);
  const Float factor =
      splat(static_cast<float>(gradient_scale * (1 + 2 * a.z_loss * log_sum) / row_statistics.exponentials));
  const Float uniform = splat(static_cast<float>(gradient_scale * smoothing / vocabulary));
  const auto of_label = static_cast<float>(gradient_scale * (1 - smoothing));
  const auto cap = static_cast<float>(a.soft_cap);
  const Float inverse_cap = splat(cap == 0 ? 0 : 1 / cap);
  Sink sink(a.dlogits.at(row));
  for_chunks(a.vocabulary, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* c = logits.get(i, n);
    float* d = sink.get(i);
    const float label_logit =
        label >= i && label < i + n ? c[label - i] : 0;  // before d, maybe the same memory
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float value = load(c + j, extent);
      Float gradient = hn::MulSub(exponential(hn::Sub(value, shift)), factor, uniform);
      if (cap != 0) {  // d c / d logit = 1 - tanh^2
        const Float tanh = hn::Mul(value, inverse_cap);
        gradient = hn::Mul(gradient, hn::NegMulAdd(tanh, tanh, splat(1)));
      }
      store(gradient, d + j, extent);
    });
    if (label >= i && label < i + n) {
      const float tanh = cap == 0 ? 0 : label_logit / cap;
      d[label - i] -= of_label * (1 - tanh * tanh);
    }
    sink.put(d, i, n);
  });
  return static_cast<float>(loss);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(cross_entropy_row);

void cross_entropy(ThreadTeam& team, const CrossEntropy& arguments) {
  const CrossEntropy& a = arguments;
  for (int64_t row = 0; row < a.rows; ++row) {
    const int32_t label = a.labels[row];
    if (label != ignored_label && (label < 0 || label >= a.vocabulary)) {
      throw_user_error(
          fmt::format("label {} of row {} is outside the vocabulary of {}", label, row, a.vocabulary),
          "the data was made with another tokenizer, or the model's vocabulary is too small");
    }
  }
  if (a.vocabulary <= 0) return;
  ATHANOR_ASSERT(!a.dlogits.present() || a.valid_tokens != nullptr,
                 "a gradient needs the number of valid tokens");
  // With no valid token in the whole step there is nothing to divide by, and every gradient is zero.
  const double valid_tokens = a.valid_tokens != nullptr ? *a.valid_tokens : 0;
  const double gradient_scale = valid_tokens > 0 ? a.loss_scale / valid_tokens : 0;
  const int64_t tile = std::max<int64_t>(1, tile_elements / a.vocabulary);
  team.parallel_for(ceil_divide(a.rows, tile), [&](int64_t index, int) {
    for (int64_t row = index * tile; row < std::min(a.rows, (index + 1) * tile); ++row) {
      if (a.labels[row] != ignored_label) {
        a.loss[row] = HWY_DYNAMIC_DISPATCH(cross_entropy_row)(a, row, gradient_scale);
      } else {
        a.loss[row] = 0;
        if (a.dlogits.present())
          std::memset(a.dlogits.at(row).data, 0,
                      static_cast<size_t>(a.vocabulary) * size_of(a.dlogits.dtype));
      }
    }
  });
}

double count_valid_tokens(const int32_t* labels, int64_t count) {
  int64_t valid = 0;
  for (int64_t i = 0; i < count; ++i) valid += labels[i] != ignored_label ? 1 : 0;
  return static_cast<double>(valid);
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
