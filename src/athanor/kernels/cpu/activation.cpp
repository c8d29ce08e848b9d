#include "athanor/kernels/cpu/activation.h"

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/activation.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// 1/2 (1 + tanh(u)) = sigmoid(2u), so gelu(x) = x sigmoid(2u) with 2u = x (a + b x^2).
constexpr float gelu_a = 1.5957691216F;  // 2 sqrt(2/pi)
constexpr float gelu_b = 1.5957691216F * 0.044715F;

void gelu_span(ConstSpan x, Span y, int64_t count) {
  Source source(x);
  Sink sink(y);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* from = source.get(i, n);
    float* to = sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float v = load(from + j, extent);
      const Float inner = hn::Mul(v, hn::MulAdd(hn::Mul(v, v), splat(gelu_b), splat(gelu_a)));
      store(hn::Mul(v, sigmoid(inner)), to + j, extent);
    });
    sink.put(to, i, n);
  });
}

void gelu_rows(int64_t rows, int64_t features, ConstRows x, Rows y) {
  for (int64_t row = 0; row < rows; ++row) gelu_span(x.at(row), y.at(row), features);
}

void soft_cap_span(ConstSpan x, Span y, int64_t count, float cap) {
  Source source(x);
  Sink sink(y);
  const Float inverse = splat(1 / cap), factor = splat(cap);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* from = source.get(i, n);
    float* to = sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      store(hn::Mul(factor, hyperbolic_tangent(hn::Mul(inverse, load(from + j, extent)))), to + j, extent);
    });
    sink.put(to, i, n);
  });
}

void gelu_gradient_span(ConstSpan dy, ConstSpan x, Span dx, int64_t count) {
  Source dy_source(dy), x_source(x);
  Sink sink(dx);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* from_dy = dy_source.get(i, n);
    const float* from = x_source.get(i, n);
    float* to = sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float v = load(from + j, extent), square = hn::Mul(v, v);
      const Float s = sigmoid(hn::Mul(v, hn::MulAdd(square, splat(gelu_b), splat(gelu_a))));
      // d/dx x s = s + x s (1 - s) d(2u)/dx. Where s (1 - s) underflows the factor may be large, never
      // infinite.
      const Float slope = hn::Mul(v, hn::MulAdd(square, splat(3 * gelu_b), splat(gelu_a)));
      const Float derivative = hn::MulAdd(hn::Mul(s, hn::Sub(splat(1), s)), slope, s);
      store(hn::Mul(load(from_dy + j, extent), derivative), to + j, extent);
    });
    sink.put(to, i, n);
  });
}

void swiglu_span(ConstSpan gate, ConstSpan up, Span y, int64_t count) {
  Source gate_source(gate), up_source(up);
  Sink sink(y);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* from_gate = gate_source.get(i, n);
    const float* from_up = up_source.get(i, n);
    float* to = sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float g = load(from_gate + j, extent);
      store(hn::Mul(hn::Mul(g, sigmoid(g)), load(from_up + j, extent)), to + j, extent);
    });
    sink.put(to, i, n);
  });
}

void swiglu_gradient_span(ConstSpan dy, ConstSpan gate, ConstSpan up, Span dgate, Span dup, int64_t count) {
  Source dy_source(dy), gate_source(gate), up_source(up);
  Sink dgate_sink(dgate), dup_sink(dup);
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR {
    const float* from_dy = dy_source.get(i, n);
    const float* from_gate = gate_source.get(i, n);
    const float* from_up = up_source.get(i, n);
    float* to_dgate = dgate_sink.get(i);
    float* to_dup = dup_sink.get(i);
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float d = load(from_dy + j, extent), g = load(from_gate + j, extent),
                  u = load(from_up + j, extent);
      const Float s = sigmoid(g);
      const Float derivative = hn::MulAdd(hn::Mul(g, s), hn::Sub(splat(1), s), s);
      store(hn::Mul(hn::Mul(d, u), derivative), to_dgate + j, extent);
      store(hn::Mul(d, hn::Mul(g, s)), to_dup + j, extent);
    });
    dgate_sink.put(to_dgate, i, n);
    dup_sink.put(to_dup, i, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(gelu_span);
HWY_EXPORT(gelu_rows);
HWY_EXPORT(gelu_gradient_span);
HWY_EXPORT(soft_cap_span);
HWY_EXPORT(swiglu_span);
HWY_EXPORT(swiglu_gradient_span);

void gelu_rows(int64_t rows, int64_t features, ConstRows x, Rows y) {
  HWY_DYNAMIC_DISPATCH(gelu_rows)(rows, features, x, y);
}

void gelu(ThreadTeam& team, int64_t rows, int64_t features, ConstRows x, Rows y) {
  for_spans(team, rows, features, x.stride == features && y.stride == features,
            [&](int64_t row, int64_t column, int64_t count) {
              HWY_DYNAMIC_DISPATCH(gelu_span)(x.at(row, column), y.at(row, column), count);
            });
}

void soft_cap(ThreadTeam& team, int64_t rows, int64_t features, float cap, ConstRows x, Rows y) {
  for_spans(team, rows, features, x.stride == features && y.stride == features,
            [&](int64_t row, int64_t column, int64_t count) {
              HWY_DYNAMIC_DISPATCH(soft_cap_span)(x.at(row, column), y.at(row, column), count, cap);
            });
}

void gelu_gradient(ThreadTeam& team, int64_t rows, int64_t features, ConstRows dy, ConstRows x, Rows dx) {
  const bool compact = dy.stride == features && x.stride == features && dx.stride == features;
  for_spans(team, rows, features, compact, [&](int64_t row, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(gelu_gradient_span)(dy.at(row, column), x.at(row, column), dx.at(row, column),
                                             count);
  });
}

void swiglu(ThreadTeam& team, int64_t rows, int64_t features, ConstRows gate, ConstRows up, Rows y) {
  const bool compact = gate.stride == features && up.stride == features && y.stride == features;
  for_spans(team, rows, features, compact, [&](int64_t row, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(swiglu_span)(gate.at(row, column), up.at(row, column), y.at(row, column), count);
  });
}

void swiglu_gradient(ThreadTeam& team, int64_t rows, int64_t features, ConstRows dy, ConstRows gate,
                     ConstRows up, Rows dgate, Rows dup) {
  const bool compact = dy.stride == features && gate.stride == features && up.stride == features &&
                       dgate.stride == features && dup.stride == features;
  for_spans(team, rows, features, compact, [&](int64_t row, int64_t column, int64_t count) {
    HWY_DYNAMIC_DISPATCH(swiglu_gradient_span)
    (dy.at(row, column), gate.at(row, column), up.at(row, column), dgate.at(row, column), dup.at(row, column),
     count);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
