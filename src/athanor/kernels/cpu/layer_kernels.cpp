// Kernel table entries of embeddings, norms, activations, rotary embedding, dropout, sums and casts.
#include "athanor/kernels/cpu/activation.h"
#include "athanor/kernels/cpu/adapters.h"
#include "athanor/kernels/cpu/column_sum.h"
#include "athanor/kernels/cpu/dropout.h"
#include "athanor/kernels/cpu/elementwise.h"
#include "athanor/kernels/cpu/embedding.h"
#include "athanor/kernels/cpu/norm.h"
#include "athanor/kernels/cpu/rotary.h"

namespace athanor::cpu {

namespace {

using Types = std::span<const OperandType>;

// Of a table that is a part of a larger one, `extent` counts the rows of all of it.
int64_t vocabulary_of(const KernelArguments& a, const TensorView& table) {
  return a.attributes->extent > 0 ? a.attributes->extent : table.shape[0];
}

void run_embedding(const KernelArguments& a, const KernelContext& context) {
  const TensorView &table = a.inputs[0], &y = a.outputs[0];
  embedding(*context.team, {.tokens = y.shape.tokens(),
                            .vocabulary = vocabulary_of(a, table),
                            .features = table.shape[1],
                            .first = a.first,
                            .rows = table.shape[0],
                            .table = {table.data, table.dtype, table.shape[1]},
                            .ids = a.inputs[1].as<int32_t>(),
                            .y = Matrix(y).view()});
}

void run_embedding_gradient(const KernelArguments& a, const KernelContext& context) {
  const TensorView &dy = a.inputs[0], &dtable = a.outputs[0];
  embedding_gradient(*context.team,
                     {.tokens = dy.shape.tokens(),
                      .vocabulary = vocabulary_of(a, dtable),
                      .features = dtable.shape[1],
                      .first = a.first,
                      .rows = dtable.shape[0],
                      .dy = Matrix(dy).view(),
                      .ids = a.inputs[1].as<int32_t>(),
                      .dtable = floats(dtable),
                      .accumulate = a.accumulate},
                     a.workspace.data());
}

void run_bias_gradient(const KernelArguments& a, const KernelContext& context) {
  const TensorView& dy = a.inputs[0];
  const int64_t features = dy.shape[-1];
  const Matrix rows(dy);
  // [B,S,H,N] has rows of its own within a token; it must be compact then.
  const bool by_token = rows.features == features;
  ATHANOR_ASSERT(by_token || dy.compact(), "a bias gradient of a strided tensor {}", to_text(dy.shape));
  column_sum(*context.team, by_token ? rows.rows : dy.shape.rows(), features,
             by_token ? rows.view() : Rows{dy.data, dy.dtype, features}, floats(a.outputs[0]), a.accumulate,
             a.workspace.data());
}

NormShape norm_shape(const Shape& x) {
  const int64_t features = x[-1];
  return {x.tokens(), features == 0 ? 1 : x.elements_per_token() / features, features};
}

template <class T>
Statistic<T> statistic(const TensorView& view) {
  if (!view.present()) return {};
  return {floats(view), view.shape.rank() > 2 ? view.token_stride : 1};
}

// Both norms. Operands: x weight (bias) addend -> y (mean) rstd total.
template <bool centered>
void run_norm(const KernelArguments& a, const KernelContext& context) {
  const TensorView& x = a.inputs[0];
  NormForward forward{.shape = norm_shape(x.shape),
                      .x = Matrix(x).view(),
                      .addend = optional_rows(a.inputs[centered ? 3 : 2]),
                      .weight = span_of(a.inputs[1]),
                      .y = Matrix(a.outputs[0]).view(),
                      .total = optional_rows(a.outputs[centered ? 3 : 2]),
                      .rstd = statistic<float>(a.outputs[centered ? 2 : 1]),
                      .epsilon = a.attributes->epsilon};
  if (centered) {
    forward.bias = span_of(a.inputs[2]);
    forward.mean = statistic<float>(a.outputs[1]);
  }
  norm(*context.team, forward, a.workspace.data());
}

// dy x weight (mean) rstd residual_gradient -> dx.
template <bool centered>
void run_norm_input_gradient(const KernelArguments& a, const KernelContext& context) {
  NormInputGradient gradient{.shape = norm_shape(a.inputs[1].shape),
                             .dy = Matrix(a.inputs[0]).view(),
                             .x = Matrix(a.inputs[1]).view(),
                             .weight = span_of(a.inputs[2]),
                             .rstd = statistic<const float>(a.inputs[centered ? 4 : 3]),
                             .residual = optional_rows(a.inputs[centered ? 5 : 4]),
                             .dx = Matrix(a.outputs[0]).view()};
  if (centered) gradient.mean = statistic<const float>(a.inputs[3]);
  norm_input_gradient(*context.team, gradient, a.workspace.data());
}

// dy x (mean) rstd -> dweight (dbias).
template <bool centered>
void run_norm_weight_gradient(const KernelArguments& a, const KernelContext& context) {
  NormWeightGradient gradient{.shape = norm_shape(a.inputs[1].shape),
                              .dy = Matrix(a.inputs[0]).view(),
                              .x = Matrix(a.inputs[1]).view(),
                              .rstd = statistic<const float>(a.inputs[centered ? 3 : 2]),
                              .dweight = floats(a.outputs[0]),
                              .accumulate = a.accumulate};
  if (centered) {
    gradient.mean = statistic<const float>(a.inputs[2]);
    if (a.outputs[1].present()) gradient.dbias = floats(a.outputs[1]);
  }
  norm_weight_gradient(*context.team, gradient, a.workspace.data());
}

void run_gelu(const KernelArguments& a, const KernelContext& context) {
  const Matrix x(a.inputs[0]), y(a.outputs[0]);
  gelu(*context.team, y.rows, y.features, x.view(), y.view());
}

void run_gelu_gradient(const KernelArguments& a, const KernelContext& context) {
  const Matrix dy(a.inputs[0]), x(a.inputs[1]), dx(a.outputs[0]);
  gelu_gradient(*context.team, dx.rows, dx.features, dy.view(), x.view(), dx.view());
}

void run_swiglu(const KernelArguments& a, const KernelContext& context) {
  const Matrix gate(a.inputs[0]), up(a.inputs[1]), y(a.outputs[0]);
  swiglu(*context.team, y.rows, y.features, gate.view(), up.view(), y.view());
}

void run_swiglu_gradient(const KernelArguments& a, const KernelContext& context) {
  const Matrix dy(a.inputs[0]), gate(a.inputs[1]), up(a.inputs[2]), dgate(a.outputs[0]), dup(a.outputs[1]);
  swiglu_gradient(*context.team, dy.rows, dy.features, dy.view(), gate.view(), up.view(), dgate.view(),
                  dup.view());
}

void run_rotary(const KernelArguments& a, const KernelContext& context) {
  const TensorView& x = a.inputs[0];
  const Attributes& attributes = *a.attributes;
  rotary(*context.team,
         {.tokens = x.shape.tokens(),
          .heads = x.shape[2],
          .head_features = x.shape[3],
          .x = Matrix(x).view(),
          .y = Matrix(a.outputs[0]).view(),
          .positions = a.inputs[1].as<int32_t>(),
          .options = {.theta = attributes.theta,
                      .factor = attributes.rope_factor,
                      .low_frequency = attributes.rope_low,
                      .high_frequency = attributes.rope_high,
                      .original_positions = attributes.rope_original,
                      .inverse = attributes.inverse}},
         a.workspace.data());
}

void run_dropout(const KernelArguments& a, const KernelContext& context) {
  const TensorView& x = a.inputs[0];
  dropout(*context.team, {.tokens = x.shape.tokens(),
                          .features = x.shape.elements_per_token(),
                          .tokens_per_sample = x.shape[1],
                          .x = Matrix(x).view(),
                          .addend = optional_rows(a.inputs[3]),
                          .y = Matrix(a.outputs[0]).view(),
                          .sample_ids = a.inputs[1].as<int64_t>(),
                          .indices = a.inputs[2].as<int32_t>(),
                          .key = dropout_key(context.step->seed, a.name_hash, context.step->step),
                          .probability = a.attributes->probability});
}

void run_add(const KernelArguments& a, const KernelContext& context) {
  const Matrix left(a.inputs[0]), right(a.inputs[1]), y(a.outputs[0]);
  add(*context.team, y.rows, y.features, left.view(), right.view(), y.view());
}

void run_cast(const KernelArguments& a, const KernelContext& context) {
  const Matrix x(a.inputs[0]), y(a.outputs[0]);
  cast(*context.team, y.rows, y.features, x.view(), y.view());
}

}  // namespace

void add_layer_kernels(KernelTable& table) {
  using enum OperationKind;
  set_storage_types(table, embedding, {.run = run_embedding});
  set_storage_types(
      table, embedding_gradient,
      {.run = run_embedding_gradient, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
         return embedding_gradient_workspace_bytes(in[0].shape.tokens());
       }});
  set_storage_types(
      table, bias_gradient,
      {.run = run_bias_gradient, .workspace_bytes = [](const Attributes&, Types in, Types, int) {
         return column_sum_workspace_bytes(in[0].shape.rows(), in[0].shape[-1]);
       }});
  const auto forward_bytes = [](const Attributes&, Types in, Types, int threads) {
    return norm_workspace_bytes(norm_shape(in[0].shape), threads);
  };
  const auto input_gradient_bytes = [](const Attributes&, Types in, Types, int threads) {
    return norm_input_gradient_workspace_bytes(norm_shape(in[1].shape), threads);
  };
  const auto weight_gradient_bytes = [](const Attributes&, Types in, Types, int threads) {
    return norm_weight_gradient_workspace_bytes(norm_shape(in[1].shape), threads);
  };
  set_storage_types(table, layer_norm, {.run = run_norm<true>, .workspace_bytes = forward_bytes});
  set_storage_types(table, rms_norm, {.run = run_norm<false>, .workspace_bytes = forward_bytes});
  set_storage_types(table, layer_norm_input_gradient,
                    {.run = run_norm_input_gradient<true>, .workspace_bytes = input_gradient_bytes});
  set_storage_types(table, rms_norm_input_gradient,
                    {.run = run_norm_input_gradient<false>, .workspace_bytes = input_gradient_bytes});
  set_storage_types(table, layer_norm_weight_gradient,
                    {.run = run_norm_weight_gradient<true>, .workspace_bytes = weight_gradient_bytes});
  set_storage_types(table, rms_norm_weight_gradient,
                    {.run = run_norm_weight_gradient<false>, .workspace_bytes = weight_gradient_bytes});
  set_storage_types(table, OperationKind::gelu, {.run = run_gelu});
  set_storage_types(table, OperationKind::gelu_gradient, {.run = run_gelu_gradient});
  set_storage_types(table, OperationKind::swiglu, {.run = run_swiglu});
  set_storage_types(table, OperationKind::swiglu_gradient, {.run = run_swiglu_gradient});
  set_storage_types(
      table, OperationKind::rotary,
      {.run = run_rotary, .workspace_bytes = [](const Attributes&, Types in, Types, int threads) {
         return rotary_workspace_bytes(in[0].shape[2], in[0].shape[3], threads);
       }});
  set_storage_types(table, OperationKind::dropout, {.run = run_dropout});
  set_storage_types(table, OperationKind::add, {.run = run_add});
  set_storage_types(table, OperationKind::cast, {.run = run_cast});
  table.set(OperationKind::cast, DType::fp64, {.run = run_cast});
}

}  // namespace athanor::cpu
