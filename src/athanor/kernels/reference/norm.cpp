// LayerNorm (Ba et al. 2016) and RMSNorm (Zhang and Sennrich 2019) over the last dim, forward and backward.
// A token may hold several rows (query/key norm: one per head); each has its own statistics.
#include <cmath>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

double mean_of(const double* values, int64_t count) {
  double sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += values[i];
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

// Rows of x are numbered through; the statistics [B,S] or [B,S,H] hold one element for each.
int64_t statistic_offset(const TensorView& statistic, int64_t row, int64_t rows_per_token) {
  if (statistic.shape.rank() < 2) return row;
  return row / rows_per_token * statistic.token_stride + row % rows_per_token;
}

int64_t rows_per_token(const TensorView& x) {
  return x.shape.rank() < 3 || x.shape[-1] == 0 ? 1 : x.shape.elements_per_token() / x.shape[-1];
}

// total = x + addend (x alone without one), into `total_row` and, if wanted, into memory.
void add_rows(const TensorView& x, const TensorView& addend, const TensorView& total, int64_t row,
              double* total_row, double* scratch) {
  const int64_t width = x.shape[-1];
  std::copy_n(read(x, Rows(x).offset(row), width, scratch), width, total_row);
  if (addend.present()) {
    const double* other = read(addend, Rows(addend).offset(row), width, scratch);
    for (int64_t i = 0; i < width; ++i) total_row[i] += other[i];
  }
  if (!total.present()) return;
  // What is normalised is the sum as stored: computing the norm again from it gives the same bits.
  write(total, Rows(total).offset(row), width, total_row);
  std::copy_n(read(total, Rows(total).offset(row), width, scratch), width, total_row);
}

void layer_norm(const KernelArguments& a, const KernelContext&) {
  const TensorView &x = a.inputs[0], &weight = a.inputs[1], &bias = a.inputs[2], &addend = a.inputs[3];
  const TensorView &y = a.outputs[0], &mean = a.outputs[1], &rstd = a.outputs[2], &total = a.outputs[3];
  const int64_t width = x.shape[-1], per_token = rows_per_token(x);
  Scratch scratch(a.workspace);
  double *row = scratch.take(width), *out = scratch.take(width);
  for (int64_t r = 0; r < x.shape.rows(); ++r) {
    add_rows(x, addend, total, r, row, out);
    const double center = mean_of(row, width);
    for (int64_t i = 0; i < width; ++i) out[i] = (row[i] - center) * (row[i] - center);
    const double reciprocal = 1 / std::sqrt(mean_of(out, width) + a.attributes->epsilon);
    for (int64_t i = 0; i < width; ++i) {
      out[i] = (row[i] - center) * reciprocal * load(weight, i) + (bias.present() ? load(bias, i) : 0);
    }
    write(y, Rows(y).offset(r), width, out);
    store(mean, statistic_offset(mean, r, per_token), center);
    store(rstd, statistic_offset(rstd, r, per_token), reciprocal);
  }
}

void rms_norm(const KernelArguments& a, const KernelContext&) {
  const TensorView &x = a.inputs[0], &weight = a.inputs[1], &addend = a.inputs[2];
  const TensorView &y = a.outputs[0], &rstd = a.outputs[1], &total = a.outputs[2];
  const int64_t width = x.shape[-1], per_token = rows_per_token(x);
  Scratch scratch(a.workspace);
  double *row = scratch.take(width), *out = scratch.take(width);
  for (int64_t r = 0; r < x.shape.rows(); ++r) {
    add_rows(x, addend, total, r, row, out);
    for (int64_t i = 0; i < width; ++i) out[i] = row[i] * row[i];
    const double reciprocal = 1 / std::sqrt(mean_of(out, width) + a.attributes->epsilon);
    for (int64_t i = 0; i < width; ++i) out[i] = row[i] * reciprocal * load(weight, i);
    write(y, Rows(y).offset(r), width, out);
    store(rstd, statistic_offset(rstd, r, per_token), reciprocal);
  }
}

// Both norms: n = (x - mean) rstd, g = dy weight;
// dx = rstd (g - mean(g) - n mean(g n)) + residual_gradient, without the mean terms of x and g for RMSNorm.
void norm_input_gradient(const KernelArguments& a, const TensorView* mean, const TensorView& rstd,
                         const TensorView& residual) {
  const TensorView &dy = a.inputs[0], &x = a.inputs[1], &weight = a.inputs[2], &dx = a.outputs[0];
  const int64_t width = x.shape[-1], per_token = rows_per_token(x);
  Scratch scratch(a.workspace);
  double *g = scratch.take(width), *normal = scratch.take(width), *product = scratch.take(width);
  const Rows dy_rows(dy), x_rows(x), residual_rows(residual), dx_rows(dx);
  for (int64_t r = 0; r < x.shape.rows(); ++r) {
    const double center = mean != nullptr ? load(*mean, statistic_offset(*mean, r, per_token)) : 0;
    const double reciprocal = load(rstd, statistic_offset(rstd, r, per_token));
    for (int64_t i = 0; i < width; ++i) {
      g[i] = load(dy, dy_rows.offset(r) + i) * load(weight, i);
      normal[i] = (load(x, x_rows.offset(r) + i) - center) * reciprocal;
      product[i] = g[i] * normal[i];
    }
    const double mean_g = mean != nullptr ? mean_of(g, width) : 0, mean_product = mean_of(product, width);
    for (int64_t i = 0; i < width; ++i) {
      g[i] = reciprocal * (g[i] - mean_g - normal[i] * mean_product) +
             (residual.present() ? load(residual, residual_rows.offset(r) + i) : 0);
    }
    write(dx, dx_rows.offset(r), width, g);
  }
}

void layer_norm_input_gradient(const KernelArguments& a, const KernelContext&) {
  norm_input_gradient(a, &a.inputs[3], a.inputs[4], a.inputs[5]);
}

void rms_norm_input_gradient(const KernelArguments& a, const KernelContext&) {
  norm_input_gradient(a, nullptr, a.inputs[3], a.inputs[4]);
}

// dweight (+)= sum of dy n over all rows, dbias (+)= sum of dy
void norm_weight_gradient(const KernelArguments& a, const TensorView* mean, const TensorView& rstd,
                          const TensorView* dbias) {
  const TensorView &dy = a.inputs[0], &x = a.inputs[1], &dweight = a.outputs[0];
  const int64_t width = x.shape[-1], per_token = rows_per_token(x);
  Scratch scratch(a.workspace);
  double *weight_sum = scratch.take(width), *bias_sum = scratch.take(width);
  const Rows dy_rows(dy), x_rows(x);
  std::fill_n(weight_sum, width, 0.0);
  std::fill_n(bias_sum, width, 0.0);
  for (int64_t r = 0; r < x.shape.rows(); ++r) {
    const double center = mean != nullptr ? load(*mean, statistic_offset(*mean, r, per_token)) : 0;
    const double reciprocal = load(rstd, statistic_offset(rstd, r, per_token));
    for (int64_t i = 0; i < width; ++i) {
      const double gradient = load(dy, dy_rows.offset(r) + i);
      weight_sum[i] += gradient * (load(x, x_rows.offset(r) + i) - center) * reciprocal;
      bias_sum[i] += gradient;
    }
  }
  write(dweight, 0, width, weight_sum, a.accumulate);
  if (dbias != nullptr && dbias->present()) write(*dbias, 0, width, bias_sum, a.accumulate);
}

void layer_norm_weight_gradient(const KernelArguments& a, const KernelContext&) {
  norm_weight_gradient(a, &a.inputs[2], a.inputs[3], &a.outputs[1]);
}

void rms_norm_weight_gradient(const KernelArguments& a, const KernelContext&) {
  norm_weight_gradient(a, nullptr, a.inputs[2], nullptr);
}

int64_t two_rows(const Attributes&, Types in, Types, int) {
  return doubles(2 * in[0].shape[-1]);
}
int64_t three_rows(const Attributes&, Types in, Types, int) {
  return doubles(3 * in[0].shape[-1]);
}

}  // namespace

void add_norm(KernelTable& table) {
  set_all(table, OperationKind::layer_norm, {.run = layer_norm, .workspace_bytes = two_rows});
  set_all(table, OperationKind::rms_norm, {.run = rms_norm, .workspace_bytes = two_rows});
  set_all(table, OperationKind::layer_norm_input_gradient,
          {.run = layer_norm_input_gradient, .workspace_bytes = three_rows});
  set_all(table, OperationKind::rms_norm_input_gradient,
          {.run = rms_norm_input_gradient, .workspace_bytes = three_rows});
  set_all(table, OperationKind::layer_norm_weight_gradient,
          {.run = layer_norm_weight_gradient, .workspace_bytes = two_rows});
  set_all(table, OperationKind::rms_norm_weight_gradient,
          {.run = rms_norm_weight_gradient, .workspace_bytes = two_rows});
}

}  // namespace athanor::reference
