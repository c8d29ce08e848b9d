// The entries of attention in the kernel table.
#include "athanor/base/error.h"
#include "athanor/kernels/cpu/attention.h"
#include "athanor/kernels/cpu/cpu_kernels.h"

namespace athanor {
namespace {

using cpu::AttentionDirection;
using cpu::AttentionShape;

cpu::ConstRows input_rows(const TensorView& view) {
  if (!view.present()) return {};
  return {view.data, view.dtype, view.token_stride};
}
cpu::Rows output_rows(const TensorView& view) {
  return {view.data, view.dtype, view.token_stride};
}

AttentionShape shape_of(const Shape& q, const Shape& k) {
  return {.batch = q[0],
          .query_length = q[1],
          .key_length = k[1],
          .query_heads = q[2],
          .key_heads = k[2],
          .head_size = q[3]};
}

cpu::AttentionTokens tokens_of(const TensorView& positions, const TensorView& documents,
                               const TensorView& indices) {
  const auto column = [](const TensorView& view) -> const int32_t* {
    if (!view.present()) return nullptr;
    ATHANOR_ASSERT(view.dtype == DType::int32 && view.compact());
    return view.as<const int32_t>();
  };
  return {column(positions), column(documents), column(indices)};
}

cpu::AttentionOptions options_of(const KernelArguments& arguments, const KernelContext& context,
                                 const TensorView& samples) {
  const Attributes& attributes = *arguments.attributes;
  cpu::AttentionOptions options;
  options.scale = attributes.scale;
  options.window = attributes.window;
  if (attributes.probability > 0) {
    ATHANOR_ASSERT(samples.present() && samples.dtype == DType::int64);
    options.dropout = {.probability = attributes.probability,
                       .seed = context.step->seed,
                       .name_hash = arguments.name_hash,
                       .step = context.step->step,
                       .first_head = arguments.first,
                       .sample_ids = samples.as<const int64_t>()};
  }
  return options;
}

void run_attention(const KernelArguments& arguments, const KernelContext& context) {
  const auto& in = arguments.inputs;
  cpu::AttentionForward call;
  call.shape = shape_of(in[0].shape, in[1].shape);
  call.options = options_of(arguments, context, in[6]);
  call.query_tokens = call.key_tokens = tokens_of(in[3], in[4], in[5]);
  call.q = input_rows(in[0]);
  call.k = input_rows(in[1]);
  call.v = input_rows(in[2]);
  call.out = output_rows(arguments.outputs[0]);
  call.logsumexp = output_rows(arguments.outputs[1]);
  attention_forward(call, *context.team, arguments.workspace.data());
}

void run_attention_part(const KernelArguments& arguments, const KernelContext& context) {
  const auto& in = arguments.inputs;
  cpu::AttentionForward call;
  call.shape = shape_of(in[0].shape, in[1].shape);
  call.options = options_of(arguments, context, in[11]);
  call.query_tokens = tokens_of(in[3], in[4], in[9]);
  call.key_tokens = tokens_of(in[5], in[6], in[10]);
  call.q = input_rows(in[0]);
  call.k = input_rows(in[1]);
  call.v = input_rows(in[2]);
  call.out_before = input_rows(in[7]);
  call.logsumexp_before = input_rows(in[8]);
  call.out = output_rows(arguments.outputs[0]);
  call.logsumexp = output_rows(arguments.outputs[1]);
  attention_forward(call, *context.team, arguments.workspace.data());
}

// What both kinds of backward have in common: dout q k v out logsumexp -> dq dk dv.
cpu::AttentionBackward backward_of(const KernelArguments& arguments) {
  const auto& in = arguments.inputs;
  cpu::AttentionBackward call;
  call.shape = shape_of(in[1].shape, in[2].shape);
  call.dout = input_rows(in[0]);
  call.q = input_rows(in[1]);
  call.k = input_rows(in[2]);
  call.v = input_rows(in[3]);
  call.out = input_rows(in[4]);
  call.logsumexp = input_rows(in[5]);
  call.dq = output_rows(arguments.outputs[0]);
  call.dk = output_rows(arguments.outputs[1]);
  call.dv = output_rows(arguments.outputs[2]);
  return call;
}

void run_attention_gradient(const KernelArguments& arguments, const KernelContext& context) {
  const auto& in = arguments.inputs;
  cpu::AttentionBackward call = backward_of(arguments);
  call.options = options_of(arguments, context, in[9]);
  call.query_tokens = call.key_tokens = tokens_of(in[6], in[7], in[8]);
  attention_backward(call, *context.team, arguments.workspace.data());
}

void run_attention_part_gradient(const KernelArguments& arguments, const KernelContext& context) {
  const auto& in = arguments.inputs;
  cpu::AttentionBackward call = backward_of(arguments);
  call.options = options_of(arguments, context, in[15]);
  call.query_tokens = tokens_of(in[6], in[7], in[13]);
  call.key_tokens = tokens_of(in[8], in[9], in[14]);
  call.dq_before = input_rows(in[10]);
  call.dk_before = input_rows(in[11]);
  call.dv_before = input_rows(in[12]);
  attention_backward(call, *context.team, arguments.workspace.data());
}

}  // namespace

void add_cpu_attention_kernels(KernelTable& table) {
  using Types = std::span<const OperandType>;
  const auto forward_bytes = [](const Attributes&, Types inputs, Types, int threads) {
    return attention_workspace_bytes(shape_of(inputs[0].shape, inputs[1].shape), AttentionDirection::forward,
                                     threads);
  };
  const auto backward_bytes = [](const Attributes&, Types inputs, Types, int threads) {
    return attention_workspace_bytes(shape_of(inputs[1].shape, inputs[2].shape), AttentionDirection::backward,
                                     threads);
  };
  using enum OperationKind;
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    table.set(attention, dtype, {.run = run_attention, .workspace_bytes = forward_bytes});
    table.set(attention_part, dtype, {.run = run_attention_part, .workspace_bytes = forward_bytes});
    table.set(attention_gradient, dtype, {.run = run_attention_gradient, .workspace_bytes = backward_bytes});
    table.set(attention_part_gradient, dtype,
              {.run = run_attention_part_gradient, .workspace_bytes = backward_bytes});
  }
}

}  // namespace athanor
