// Kernel table entries of what frames a step: the batch, the loss, gradient norms and optimizers.
#include <cstring>

#include "athanor/kernels/cpu/adapters.h"
#include "athanor/kernels/cpu/cpu_kernels.h"
#include "athanor/kernels/cpu/cross_entropy.h"
#include "athanor/kernels/cpu/gradient_norm.h"
#include "athanor/kernels/cpu/optimizer.h"
#include "athanor/kernels/cpu/reduction.h"
#include "athanor/kernels/cpu/vocabulary_loss.h"

namespace athanor::cpu {

namespace {

using Types = std::span<const OperandType>;

template <class T>
void copy_batch(const T* from, const TensorView& to) {
  if (!to.present() || to.shape.elements() == 0) return;
  ATHANOR_ASSERT(from != nullptr && to.dtype == dtype_of<T>::value, "a batch tensor is missing or {}",
                 name_of(to.dtype));
  std::memcpy(to.data, from, static_cast<size_t>(to.shape.elements()) * sizeof(T));
}

void run_load_batch(const KernelArguments& a, const KernelContext& context) {
  const HostBatch& batch = context.step->micro_batches.at(static_cast<size_t>(a.micro_batch));
  const int32_t* words[] = {batch.token_ids, batch.labels, batch.positions, batch.documents, batch.indices};
  for (size_t i = 0; i < std::size(words); ++i) copy_batch(words[i], a.outputs[i]);
  copy_batch(batch.sample_ids, a.outputs[5]);
}

void run_load_tokens(const KernelArguments& a, const KernelContext& context) {
  const HostBatch& batch = context.step->micro_batches.at(static_cast<size_t>(a.micro_batch));
  const int32_t* words[] = {batch.token_ids, batch.positions, batch.lengths, batch.cache_rows};
  for (size_t i = 0; i < std::size(words); ++i) copy_batch(words[i], a.outputs[i]);
}

void run_cross_entropy(const KernelArguments& a, const KernelContext& context) {
  const TensorView &logits = a.inputs[0], &valid_tokens = a.inputs[2];
  const Attributes& attributes = *a.attributes;
  cross_entropy(*context.team, {.rows = logits.shape.tokens(),
                                .vocabulary = logits.shape[-1],
                                .logits = Matrix(logits).view(),
                                .labels = a.inputs[1].as<int32_t>(),
                                .valid_tokens = valid_tokens.present() ? doubles(valid_tokens) : nullptr,
                                .label_smoothing = attributes.label_smoothing,
                                .z_loss = attributes.z_loss,
                                .soft_cap = attributes.soft_cap,
                                .loss_scale = context.step->loss_scale,
                                .loss = floats(a.outputs[0]),
                                .dlogits = optional_rows(a.outputs[1])});
}

VocabularyPart part_of(const KernelArguments& a) {
  const TensorView& logits = a.inputs[0];
  return {.rows = logits.shape.tokens(),
          .columns = logits.shape[2],
          .first = a.first,
          .vocabulary = a.attributes->extent,
          .logits = Matrix(logits).view(),
          .soft_cap = a.attributes->soft_cap};
}

void run_vocabulary_max(const KernelArguments& a, const KernelContext& context) {
  vocabulary_max(*context.team, part_of(a), floats(a.outputs[0]));
}

void run_vocabulary_sums(const KernelArguments& a, const KernelContext& context) {
  vocabulary_sums(*context.team, part_of(a), a.inputs[1].as<int32_t>(), floats(a.inputs[2]),
                  floats(a.outputs[0]), a.outputs[0].token_stride);
}

void run_vocabulary_loss(const KernelArguments& a, const KernelContext& context) {
  const TensorView& valid_tokens = a.inputs[4];
  vocabulary_loss(*context.team, {.part = part_of(a),
                                  .labels = a.inputs[1].as<int32_t>(),
                                  .row_max = floats(a.inputs[2]),
                                  .sums = floats(a.inputs[3]),
                                  .sums_stride = a.inputs[3].token_stride,
                                  .valid_tokens = valid_tokens.present() ? doubles(valid_tokens) : nullptr,
                                  .label_smoothing = a.attributes->label_smoothing,
                                  .z_loss = a.attributes->z_loss,
                                  .loss_scale = context.step->loss_scale,
                                  .loss = floats(a.outputs[0]),
                                  .dlogits = optional_rows(a.outputs[1])});
}

void run_count_valid(const KernelArguments& a, const KernelContext&) {
  double* valid_tokens = doubles(a.outputs[0]);
  const double count = count_valid_tokens(a.inputs[0].as<int32_t>(), a.inputs[0].shape.elements());
  *valid_tokens = a.accumulate ? *valid_tokens + count : count;
}

void run_sum(const KernelArguments& a, const KernelContext& context) {
  const Matrix x(a.inputs[0]);
  sum(*context.team, x.rows, x.features, x.view(), doubles(a.outputs[0]), a.accumulate, a.workspace.data());
}

// The tiles of a bucket are laid out once, when the program is loaded.
std::shared_ptr<const void> prepare_tiles(const KernelArguments& a, int) {
  return std::make_shared<const BucketTiles>(*a.table);
}

const BucketTiles& tiles_of(const KernelArguments& a) {
  ATHANOR_ASSERT(a.prepared != nullptr, "a bucket kernel that was not prepared");
  return *static_cast<const BucketTiles*>(a.prepared);
}

void run_squared_norms(const KernelArguments& a, const KernelContext& context) {
  squared_norms(*context.team, tiles_of(a), span_of(a.inputs[0]), doubles(a.outputs[0]), a.workspace.data());
}

void run_clip(const KernelArguments& a, const KernelContext& context) {
  const TensorView& norms = a.inputs[0];
  const std::span<const double> squares(doubles(norms), static_cast<size_t>(norms.shape.elements()));
  const Clip clip = clip_of(squares, *doubles(a.inputs[1]), *doubles(a.inputs[2]),
                            {.maximum_norm = a.attributes->maximum_norm,
                             .loss_scale = context.step->loss_scale,
                             .norm_limit = context.step->norm_limit,
                             .mean_loss_limit = context.step->loss_limit});
  *doubles(a.outputs[0]) = clip.gradient_norm;
  *doubles(a.outputs[1]) = clip.factor;
  *doubles(a.outputs[2]) = clip.skip ? 1 : 0;
}

// Inputs gradient, clip_factor, skip; the working copy and the average are outputs `working` and the next.
BucketUpdate update_of(const KernelArguments& a, const KernelContext& context, size_t working) {
  BucketUpdate update{.gradient = floats(a.inputs[0]),
                      .clip_factor = doubles(a.inputs[1]),
                      .skip = doubles(a.inputs[2]),
                      .master = floats(a.outputs[0]),
                      .average_decay = a.attributes->average_decay,
                      .learning_rate = context.step->learning_rate,
                      .loss_scale = context.step->loss_scale};
  update.working = span_of(a.outputs[working]);
  if (a.outputs[working + 1].present()) update.average = floats(a.outputs[working + 1]);
  return update;
}

AdamOptions adam_options(const KernelArguments& a, const KernelContext& context) {
  const Attributes& attributes = *a.attributes;
  return {attributes.beta1, attributes.beta2, attributes.epsilon, context.step->optimizer_step};
}

void run_adamw(const KernelArguments& a, const KernelContext& context) {
  adamw(*context.team, tiles_of(a), update_of(a, context, 3), adam_options(a, context), floats(a.outputs[1]),
        floats(a.outputs[2]));
}

void run_sgd(const KernelArguments& a, const KernelContext& context) {
  sgd(*context.team, tiles_of(a), update_of(a, context, 2), a.attributes->momentum, a.attributes->nesterov,
      floats(a.outputs[1]));
}

// The state is an input here: nothing of it is written.
void run_lamb_norms(const KernelArguments& a, const KernelContext& context) {
  const BucketUpdate update{.gradient = floats(a.inputs[0]),
                            .clip_factor = doubles(a.inputs[1]),
                            .skip = doubles(a.inputs[2]),
                            .master = floats(a.inputs[3]),
                            .learning_rate = context.step->learning_rate,
                            .loss_scale = context.step->loss_scale};
  lamb_norms(*context.team, tiles_of(a), update, adam_options(a, context), floats(a.inputs[4]),
             floats(a.inputs[5]), doubles(a.outputs[0]), a.workspace.data());
}

void run_lamb(const KernelArguments& a, const KernelContext& context) {
  lamb(*context.team, tiles_of(a), update_of(a, context, 3), adam_options(a, context),
       a.attributes->trust_low, a.attributes->trust_high, doubles(a.inputs[3]), floats(a.outputs[1]),
       floats(a.outputs[2]));
}

}  // namespace

void add_step_kernels(KernelTable& table) {
  using enum OperationKind;
  table.set(load_batch, DType::int32, {.run = run_load_batch});
  table.set(load_tokens, DType::int32, {.run = run_load_tokens});
  set_storage_types(table, OperationKind::cross_entropy, {.run = run_cross_entropy});
  set_storage_types(table, OperationKind::vocabulary_max, {.run = run_vocabulary_max});
  set_storage_types(table, OperationKind::vocabulary_sums, {.run = run_vocabulary_sums});
  set_storage_types(table, OperationKind::vocabulary_loss, {.run = run_vocabulary_loss});
  table.set(count_valid, DType::fp64, {.run = run_count_valid});
  const auto sum_bytes = [](const Attributes&, Types in, Types, int) {
    const Shape& x = in[0].shape;
    return x.rank() > 2 ? sum_workspace_bytes(x.tokens(), x.elements_per_token())
                        : sum_workspace_bytes(1, x.elements());
  };
  set_storage_types(table, OperationKind::sum, {.run = run_sum, .workspace_bytes = sum_bytes});
  table.set(OperationKind::sum, DType::fp64, {.run = run_sum, .workspace_bytes = sum_bytes});
  set_storage_types(table, OperationKind::squared_norms,
                    {.run = run_squared_norms,
                     .prepare = prepare_tiles,
                     .workspace_bytes = [](const Attributes&, Types in, Types out, int) {
                       return squared_norms_workspace_bytes(in[0].shape.elements(), out[0].shape.elements());
                     }});
  table.set(OperationKind::clip, DType::fp64, {.run = run_clip});
  table.set(OperationKind::adamw, DType::fp32, {.run = run_adamw, .prepare = prepare_tiles});
  table.set(OperationKind::sgd, DType::fp32, {.run = run_sgd, .prepare = prepare_tiles});
  table.set(OperationKind::lamb_norms, DType::fp32,
            {.run = run_lamb_norms,
             .prepare = prepare_tiles,
             .workspace_bytes = [](const Attributes&, Types in, Types out, int) {
               return lamb_norms_workspace_bytes(in[0].shape.elements(), out[0].shape.elements() / 2);
             }});
  table.set(OperationKind::lamb, DType::fp32, {.run = run_lamb, .prepare = prepare_tiles});
}

}  // namespace athanor::cpu

namespace athanor {

void add_cpu_elementwise_kernels(KernelTable& table) {
  cpu::add_layer_kernels(table);
  cpu::add_step_kernels(table);
  cpu::add_cache_kernels(table);
  cpu::add_local_part_kernels(table);
}

}  // namespace athanor
