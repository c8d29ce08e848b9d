// Matrix products with a weight [N,K], and the column sums of a bias gradient.
#include "athanor/kernels/reference/access.h"
#include "athanor/kernels/reference/activation.h"

namespace athanor::reference {

namespace {

// y = x weight^T + bias, activated = activation(y as it is stored: recomputed from y it has the same bits)
void matmul(const KernelArguments& a, const KernelContext&) {
  const TensorView &x = a.inputs[0], &weight = a.inputs[1], &bias = a.inputs[2];
  const TensorView &y = a.outputs[0], &activated = a.outputs[1];
  const int64_t features = weight.shape[0], depth = weight.shape[1];
  const bool adds_bias = bias.present() && a.first == 0;  // of a product cut in depth, one part does
  const Rows x_rows(x), y_rows(y), activated_rows(activated);
  Scratch scratch(a.workspace);
  double *x_scratch = scratch.take(depth), *weight_scratch = scratch.take(depth),
         *out = scratch.take(features);
  for (int64_t row = 0; row < x_rows.count(); ++row) {
    const double* x_row = read(x, x_rows.offset(row), depth, x_scratch);
    for (int64_t n = 0; n < features; ++n) {
      const double* weight_row = read(weight, n * depth, depth, weight_scratch);
      double sum = adds_bias ? load(bias, n) : 0;
      for (int64_t k = 0; k < depth; ++k) sum += x_row[k] * weight_row[k];
      out[n] = sum;
    }
    write(y, y_rows.offset(row), features, out);
    if (!activated.present()) continue;
    const double* stored = read(y, y_rows.offset(row), features, out);
    for (int64_t n = 0; n < features; ++n) out[n] = activate(a.attributes->activation, stored[n]);
    write(activated, activated_rows.offset(row), features, out);
  }
}

// dx = dy weight + addend
void matmul_input_gradient(const KernelArguments& a, const KernelContext&) {
  const TensorView &dy = a.inputs[0], &weight = a.inputs[1], &addend = a.inputs[2], &dx = a.outputs[0];
  const int64_t features = weight.shape[0], depth = weight.shape[1];
  const Rows dy_rows(dy), dx_rows(dx), addend_rows(addend);
  Scratch scratch(a.workspace);
  double *dy_scratch = scratch.take(features), *weight_scratch = scratch.take(depth),
         *total = scratch.take(depth);
  for (int64_t row = 0; row < dx_rows.count(); ++row) {
    std::fill_n(total, depth, 0.0);
    const double* gradient = read(dy, dy_rows.offset(row), features, dy_scratch);
    for (int64_t n = 0; n < features; ++n) {
      const double* weight_row = read(weight, n * depth, depth, weight_scratch);
      for (int64_t k = 0; k < depth; ++k) total[k] += gradient[n] * weight_row[k];
    }
    if (addend.present()) {
      const double* other = read(addend, addend_rows.offset(row), depth, weight_scratch);
      for (int64_t k = 0; k < depth; ++k) total[k] += other[k];
    }
    write(dx, dx_rows.offset(row), depth, total);
  }
}

// dweight (+)= dy^T x
void matmul_weight_gradient(const KernelArguments& a, const KernelContext&) {
  const TensorView &dy = a.inputs[0], &x = a.inputs[1], &dweight = a.outputs[0];
  const int64_t features = dweight.shape[0], depth = dweight.shape[1];
  const Rows dy_rows(dy), x_rows(x);
  Scratch scratch(a.workspace);
  double *x_scratch = scratch.take(depth), *total = scratch.take(depth);
  for (int64_t n = 0; n < features; ++n) {
    std::fill_n(total, depth, 0.0);
    for (int64_t row = 0; row < x_rows.count(); ++row) {
      const double gradient = load(dy, dy_rows.offset(row) + n);
      const double* x_row = read(x, x_rows.offset(row), depth, x_scratch);
      for (int64_t k = 0; k < depth; ++k) total[k] += gradient * x_row[k];
    }
    write(dweight, n * depth, depth, total, a.accumulate);
  }
}

// dbias (+)= column sums of dy
void bias_gradient(const KernelArguments& a, const KernelContext&) {
  const TensorView &dy = a.inputs[0], &dbias = a.outputs[0];
  const Rows rows(dy);
  Scratch scratch(a.workspace);
  double *row_scratch = scratch.take(rows.length()), *total = scratch.take(rows.length());
  std::fill_n(total, rows.length(), 0.0);
  for (int64_t row = 0; row < rows.count(); ++row) {
    const double* gradient = read(dy, rows.offset(row), rows.length(), row_scratch);
    for (int64_t n = 0; n < rows.length(); ++n) total[n] += gradient[n];
  }
  write(dbias, 0, rows.length(), total, a.accumulate);
}

}  // namespace

void add_matmul(KernelTable& table) {
  set_all(table, OperationKind::matmul,
          {.run = matmul, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(in[1].shape[0] + 2 * in[1].shape[1]);
           }});
  set_all(table, OperationKind::matmul_input_gradient,
          {.run = matmul_input_gradient, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(in[1].shape[0] + 2 * in[1].shape[1]);
           }});
  set_all(table, OperationKind::matmul_weight_gradient,
          {.run = matmul_weight_gradient, .workspace_bytes = [](const Attributes&, Types, Types out, int) {
             return doubles(2 * out[0].shape[1]);
           }});
  set_all(table, OperationKind::bias_gradient,
          {.run = bias_gradient, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
             return doubles(2 * in[0].shape[-1]);
           }});
}

}  // namespace athanor::reference
