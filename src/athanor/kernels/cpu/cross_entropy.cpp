#include "athanor/kernels/cpu/cross_entropy.h"

#include <cmath>
#include <cstring>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/cross_entropy.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/cross_entropy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

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

  LogitGradient gradient;
  gradient.shift = row_statistics.maximum;
  gradient.factor = gradient_scale * (1 + 2 * a.z_loss * log_sum) / row_statistics.exponentials;
  gradient.uniform = gradient_scale * smoothing / vocabulary;
  gradient.of_label = gradient_scale * (1 - smoothing);
  gradient.soft_cap = a.soft_cap;
  gradient.label = label;
  gradient.write(logits, a.vocabulary, a.dlogits.at(row));
  return static_cast<float>(loss);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(cross_entropy_row);

void check_labels(const int32_t* labels, int64_t count, int64_t vocabulary) {
  for (int64_t row = 0; row < count; ++row) {
    const int32_t label = labels[row];
    if (label != ignored_label && (label < 0 || label >= vocabulary)) {
      throw_user_error(
          fmt::format("label {} of row {} is outside the vocabulary of {}", label, row, vocabulary),
          "the data was made with another tokenizer, or the model's vocabulary is too small");
    }
  }
}

void cross_entropy(ThreadTeam& team, const CrossEntropy& arguments) {
  const CrossEntropy& a = arguments;
  check_labels(a.labels, a.rows, a.vocabulary);
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
