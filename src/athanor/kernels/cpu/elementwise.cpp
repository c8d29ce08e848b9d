#include "athanor/kernels/cpu/elementwise.h"

#include <cstring>

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/elementwise.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

void cast_span(ConstSpan from, Span to, int64_t count) {
  Source source(from);
  Sink sink(to);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR { sink.put(source.get(i, n), i, n); });
}

void add_span(ConstSpan a, ConstSpan b, Span y, int64_t count) {
  Source a_source(a), b_source(b);
  Sink sink(y);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* left = a_source.get(i, n);
    const float* right = b_source.get(i, n);
    float* sum = sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      store(hn::Add(load(left + j, extent), load(right + j, extent)), sum + j, extent);
    });
    sink.put(sum, i, n);
  });
}

void scale_span(ConstSpan x, float factor, Span y, int64_t count) {
  Source source(x);
  Sink sink(y);
  const Float by = splat(factor);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* from = source.get(i, n);
    float* product = sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent)
                       HWY_ATTR { store(hn::Mul(load(from + j, extent), by), product + j, extent); });
    sink.put(product, i, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(cast_span);
HWY_EXPORT(add_span);
HWY_EXPORT(scale_span);

void cast(ThreadTeam& team, int64_t rows, int64_t features, ConstRows from, Rows to) {
  for_spans(team, rows, features, from.stride == features && to.stride == features,
            [&](int64_t row, int64_t column, int64_t count) {
              if (from.dtype == to.dtype) {
                std::memmove(to.at(row, column).data, from.at(row, column).data,
                             static_cast<size_t>(count) * size_of(from.dtype));
              } else {
                HWY_DYNAMIC_DISPATCH(cast_span)
                (from.at(row, column), to.at(row, column), count);
              }
            });
}

void fill_zero(ThreadTeam& team, int64_t rows, int64_t features, Rows to) {
  for_spans(team, rows, features, to.stride == features, [&](int64_t row, int64_t column, int64_t count) {
    std::memset(to.at(row, column).data, 0, static_cast<size_t>(count) * size_of(to.dtype));
  });
}

void add(ThreadTeam& team, int64_t rows, int64_t features, ConstRows a, ConstRows b, Rows y) {
  const bool compact = a.stride == features && b.stride == features && y.stride == features;
  for_spans(team, rows, features, compact, [&](int64_t row, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(add_span)
    (a.at(row, column), b.at(row, column), y.at(row, column), count);
  });
}

void scale(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x, float factor, Rows y) {
  const bool compact = x.stride == features && y.stride == features;
  for_spans(team, rows, features, compact, [&](int64_t row, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(scale_span)
    (x.at(row, column), factor, y.at(row, column), count);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
