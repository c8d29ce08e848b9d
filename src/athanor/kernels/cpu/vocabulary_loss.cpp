#include "athanor/kernels/cpu/vocabulary_loss.h"

#include <cmath>
#include <cstring>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/cross_entropy.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/vocabulary_loss.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/cross_entropy-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

float vocabulary_max_row(const VocabularyPart& part, int64_t row) {
  Logits logits(part.logits.at(row), part.soft_cap);
  float maximum = minus_infinity;
  for_chunks(part.count(), [&](int64_t i, int64_t n)
                               HWY_ATTR { maximum = std::max(maximum, maximum_of(logits.get(i, n), n)); });
  return maximum;
}

// `label` is a column of the part, or outside of it.
void vocabulary_sums_row(const VocabularyPart& part, int64_t row, int64_t label, float row_max, float* sums) {
  Logits logits(part.logits.at(row), part.soft_cap);
  const int64_t count = part.count();
  const Float shift = splat(row_max);
  double exponentials = 0, total = 0;
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* c = logits.get(i, n);
    total += sum_vectors(n, [&](int64_t j, auto extent) HWY_ATTR { return load(c + j, extent); });
    exponentials += sum_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      return only(exponential(hn::Sub(load(c + j, extent), shift)), extent);
    });
  });
  sums[0] = static_cast<float>(exponentials);
  sums[1] = static_cast<float>(total);
  sums[2] = label >= 0 && label < count ? *logits.get(label, 1) : 0;
}

void vocabulary_loss_row(const VocabularyLoss& a, int64_t row, double gradient_scale) {
  const VocabularyPart& part = a.part;
  const float* sums = a.sums + row * a.sums_stride;
  const double smoothing = a.label_smoothing, vocabulary = static_cast<double>(part.vocabulary);
  const auto exponentials = static_cast<double>(sums[0]);
  const double log_sum = static_cast<double>(a.row_max[row]) + std::log(exponentials);
  double loss = (1 - smoothing) * (log_sum - static_cast<double>(sums[2])) + a.z_loss * log_sum * log_sum;
  if (smoothing != 0) loss += smoothing * (log_sum - static_cast<double>(sums[1]) / vocabulary);
  a.loss[row] = static_cast<float>(loss);
  if (!a.dlogits.present()) return;
  Logits logits(part.logits.at(row), part.soft_cap);
  LogitGradient gradient;
  gradient.shift = a.row_max[row];
  gradient.factor = gradient_scale * (1 + 2 * a.z_loss * log_sum) / exponentials;
  gradient.uniform = gradient_scale * smoothing / vocabulary;
  gradient.of_label = gradient_scale * (1 - smoothing);
  gradient.soft_cap = part.soft_cap;
  gradient.label = a.labels[row] - part.first;
  gradient.write(logits, part.count(), a.dlogits.at(row));
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(vocabulary_max_row);
HWY_EXPORT(vocabulary_sums_row);
HWY_EXPORT(vocabulary_loss_row);

namespace {

template <class Body>
void for_rows(ThreadTeam& team, const VocabularyPart& part, Body&& body) {
  const int64_t tile = std::max<int64_t>(1, tile_elements / std::max<int64_t>(1, part.columns));
  team.parallel_for(ceil_divide(part.rows, tile), [&](int64_t index, int) {
    for (int64_t row = index * tile; row < std::min(part.rows, (index + 1) * tile); ++row) body(row);
  });
}

void zero(const Rows& rows, int64_t row, int64_t first, int64_t end) {
  if (first == end) return;
  std::memset(rows.at(row, first).data, 0, static_cast<size_t>(end - first) * size_of(rows.dtype));
}

}  // namespace

void vocabulary_max(ThreadTeam& team, const VocabularyPart& part, float* row_max) {
  for_rows(team, part,
           [&](int64_t row) { row_max[row] = HWY_DYNAMIC_DISPATCH(vocabulary_max_row)(part, row); });
}

void vocabulary_sums(ThreadTeam& team, const VocabularyPart& part, const int32_t* labels,
                     const float* row_max, float* sums, int64_t stride) {
  check_labels(labels, part.rows, part.vocabulary);
  for_rows(team, part, [&](int64_t row) {
    HWY_DYNAMIC_DISPATCH(vocabulary_sums_row)
    (part, row, labels[row] - part.first, row_max[row], sums + row * stride);
  });
}

void vocabulary_loss(ThreadTeam& team, const VocabularyLoss& arguments) {
  const VocabularyLoss& a = arguments;
  const VocabularyPart& part = a.part;
  check_labels(a.labels, part.rows, part.vocabulary);
  ATHANOR_ASSERT(!a.dlogits.present() || a.valid_tokens != nullptr,
                 "a gradient needs the number of valid tokens");
  const double valid_tokens = a.valid_tokens != nullptr ? *a.valid_tokens : 0;
  const double gradient_scale = valid_tokens > 0 ? a.loss_scale / valid_tokens : 0;
  for_rows(team, part, [&](int64_t row) {
    const bool ignored = a.labels[row] == ignored_label;
    if (ignored) {
      a.loss[row] = 0;
    } else {
      HWY_DYNAMIC_DISPATCH(vocabulary_loss_row)(a, row, gradient_scale);
    }
    if (a.dlogits.present()) zero(a.dlogits, row, ignored ? 0 : part.count(), part.columns);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
