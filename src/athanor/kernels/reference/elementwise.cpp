// Operations that treat each element by itself: activations, sums, casts, dropout.
#include <array>
#include <cmath>

#include "athanor/kernels/dropout_coordinates.h"
#include "athanor/kernels/reference/access.h"
#include "athanor/kernels/reference/activation.h"

namespace athanor::reference {

namespace {

// y[e] = function(inputs[0][e], inputs[1][e]) (nothing for an input that is not there). An output may share
// an input's storage: a block is read before it is written.
constexpr int64_t block = 256;
using Block = std::array<double, static_cast<size_t>(block)>;

template <class Function>
void map(const TensorView& first, const TensorView* second, const TensorView& y, Function function) {
  const Rows first_rows(first), second_rows(second != nullptr ? *second : first), y_rows(y);
  Block first_scratch, second_scratch, out;
  for (int64_t row = 0; row < y_rows.count(); ++row) {
    for (int64_t begin = 0; begin < y_rows.length(); begin += block) {
      const int64_t count = std::min(block, y_rows.length() - begin);
      const double* a = read(first, first_rows.offset(row) + begin, count, first_scratch.data());
      const double* b = second == nullptr
                            ? a
                            : read(*second, second_rows.offset(row) + begin, count, second_scratch.data());
      for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = function(a[i], b[i]);
      write(y, y_rows.offset(row) + begin, count, out.data());
    }
  }
}

void gelu_forward(const KernelArguments& a, const KernelContext&) {
  map(a.inputs[0], nullptr, a.outputs[0], [](double x, double) { return gelu(x); });
}

void gelu_gradient(const KernelArguments& a, const KernelContext&) {
  map(a.inputs[0], &a.inputs[1], a.outputs[0], [](double dy, double x) { return dy * gelu_derivative(x); });
}

void swiglu(const KernelArguments& a, const KernelContext&) {
  map(a.inputs[0], &a.inputs[1], a.outputs[0], [](double gate, double up) { return silu(gate) * up; });
}

void swiglu_gradient(const KernelArguments& a, const KernelContext&) {
  const TensorView &dy = a.inputs[0], &gate = a.inputs[1], &up = a.inputs[2];
  const TensorView &dgate = a.outputs[0], &dup = a.outputs[1];
  const Rows dy_rows(dy), gate_rows(gate), up_rows(up), dgate_rows(dgate), dup_rows(dup);
  for (int64_t row = 0; row < dy_rows.count(); ++row) {
    for (int64_t i = 0; i < dy_rows.length(); ++i) {
      const double gradient = load(dy, dy_rows.offset(row) + i);
      const double g = load(gate, gate_rows.offset(row) + i), u = load(up, up_rows.offset(row) + i);
      store(dgate, dgate_rows.offset(row) + i, gradient * u * silu_derivative(g));
      store(dup, dup_rows.offset(row) + i, gradient * silu(g));
    }
  }
}

void add(const KernelArguments& a, const KernelContext&) {
  map(a.inputs[0], &a.inputs[1], a.outputs[0], [](double x, double y) { return x + y; });
}

void cast(const KernelArguments& a, const KernelContext&) {
  map(a.inputs[0], nullptr, a.outputs[0], [](double x, double) { return x; });
}

void soft_cap(const KernelArguments& a, const KernelContext&) {
  const double cap = a.attributes->soft_cap;
  map(a.inputs[0], nullptr, a.outputs[0], [cap](double x, double) { return cap * std::tanh(x / cap); });
}

// y = addend + x * (kept ? 1 / (1 - probability) : 0); features count through all dims after [B,S].
void dropout(const KernelArguments& a, const KernelContext& context) {
  const TensorView &x = a.inputs[0], &samples = a.inputs[1], &indices = a.inputs[2], &addend = a.inputs[3];
  const TensorView& y = a.outputs[0];
  const DropoutKey key = dropout_key(context.step->seed, a.name_hash, context.step->step);
  const uint32_t threshold = dropout_threshold(a.attributes->probability);
  const double scale = dropout_scale(a.attributes->probability);
  const int64_t features = x.shape.elements_per_token();
  for (int64_t token = 0; token < x.shape.tokens(); ++token) {
    const int64_t sample = load_integer(samples, token / x.shape[1]);
    const auto index = static_cast<int32_t>(load_integer(indices, token_offset(indices, token)));
    for (int64_t i = 0; i < features; ++i) {
      const bool kept = dropout_word(key, sample, index, i) >= threshold;
      const double value = kept ? load(x, token_offset(x, token) + i) * scale : 0;
      store(y, token_offset(y, token) + i,
            value + (addend.present() ? load(addend, token_offset(addend, token) + i) : 0));
    }
  }
}

}  // namespace

void add_elementwise(KernelTable& table) {
  set_all(table, OperationKind::gelu, {.run = gelu_forward});
  set_all(table, OperationKind::gelu_gradient, {.run = gelu_gradient});
  set_all(table, OperationKind::swiglu, {.run = swiglu});
  set_all(table, OperationKind::swiglu_gradient, {.run = swiglu_gradient});
  set_all(table, OperationKind::add, {.run = add});
  set_all(table, OperationKind::cast, {.run = cast});
  set_all(table, OperationKind::dropout, {.run = dropout});
  set_all(table, OperationKind::soft_cap, {.run = soft_cap});
}

}  // namespace athanor::reference
