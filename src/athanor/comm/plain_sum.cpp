#include "athanor/comm/plain_sum.h"

#include <algorithm>

// clang-format off: the first decides what the others declare.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/comm/plain_sum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>
// clang-format on

HWY_BEFORE_NAMESPACE();
namespace athanor {
namespace HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr size_t line = 64;
constexpr size_t ahead = 1536;  // bytes

// Asks for a line of `data` ahead; with `exclusive` to be written: other ranks' cores hold what they have
// read or written, and telling them now spares a second message when it is written.
template <bool exclusive, class T>
HWY_INLINE void fetch(const T* data, size_t lines) {
  for (size_t i = 0; i < lines; ++i)
    __builtin_prefetch(reinterpret_cast<const char*>(data) + ahead + i * line, exclusive ? 1 : 0);
}

template <class T>
HWY_INLINE void sum_all(const PlainSum<T>& sum) {
  const hn::ScalableTag<T> d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const int64_t step = 4 * lanes;
  const size_t lines = std::max<size_t>(1, static_cast<size_t>(step) * sizeof(T) / line);
  std::array<const T*, PlainSum<T>::most> only_read{};
  size_t only_read_count = 0;
  const auto targets_end = sum.targets.begin() + sum.target_count;
  for (size_t s = 0; s < sum.source_count; ++s)
    if (std::find(sum.targets.begin(), targets_end, sum.sources[s]) == targets_end)
      only_read[only_read_count++] = sum.sources[s];
  int64_t i = 0;
  for (; i + step <= sum.count; i += step) {
    for (size_t t = 0; t < sum.target_count; ++t) fetch<true>(sum.targets[t] + i, lines);
    for (size_t s = 0; s < only_read_count; ++s) fetch<false>(only_read[s] + i, lines);
    const T* from = sum.sources[0] + i;
    auto a = hn::LoadU(d, from), b = hn::LoadU(d, from + lanes), c = hn::LoadU(d, from + 2 * lanes),
         e = hn::LoadU(d, from + 3 * lanes);
    for (size_t s = 1; s < sum.source_count; ++s) {
      from = sum.sources[s] + i;
      a = hn::Add(a, hn::LoadU(d, from));
      b = hn::Add(b, hn::LoadU(d, from + lanes));
      c = hn::Add(c, hn::LoadU(d, from + 2 * lanes));
      e = hn::Add(e, hn::LoadU(d, from + 3 * lanes));
    }
    for (size_t t = 0; t < sum.target_count; ++t) {
      T* const to = sum.targets[t] + i;
      hn::StoreU(a, d, to);
      hn::StoreU(b, d, to + lanes);
      hn::StoreU(c, d, to + 2 * lanes);
      hn::StoreU(e, d, to + 3 * lanes);
    }
  }
  for (; i < sum.count; ++i) {
    T total = sum.sources[0][i];
    for (size_t s = 1; s < sum.source_count; ++s) total += sum.sources[s][i];
    for (size_t t = 0; t < sum.target_count; ++t) sum.targets[t][i] = total;
  }
}

void sum_floats(const PlainSum<float>& sum) {
  sum_all(sum);
}
void sum_doubles(const PlainSum<double>& sum) {
  sum_all(sum);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor {

HWY_EXPORT(sum_floats);
HWY_EXPORT(sum_doubles);

void plain_sum(const PlainSum<float>& sum) {
  HWY_DYNAMIC_DISPATCH(sum_floats)(sum);
}
void plain_sum(const PlainSum<double>& sum) {
  HWY_DYNAMIC_DISPATCH(sum_doubles)(sum);
}

}  // namespace athanor
#endif  // HWY_ONCE
