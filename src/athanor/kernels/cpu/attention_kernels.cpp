// The entries of attention in the kernel table.
#include "athanor/base/error.h"
#include "athanor/kernels/cpu/attention.h"
#include "athanor/kernels/cpu/cpu_kernels.h"

namespace athanor {
namespace {

using cpu::AttentionDirection;
using cpu::AttentionShape;

cpu::ConstRows input_rows(const TensorView& view) {
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

// `first` is the input that holds positions; documents, indices and sample ids follow it.
cpu::AttentionTokens tokens_of(const KernelArguments& arguments, size_t first) {
  const auto column = [&](size_t i) -> const int32_t* {
    const TensorView& view = arguments.inputs[first + i];
    if (!view.present()) return nullptr;
    ATHANOR_ASSERT(view.dtype == DType::int32 && view.compact());
    return view.as<const int32_t>();
  };
  return {column(0), column(1), column(2)};
}

cpu::AttentionOptions options_of(const KernelArguments& arguments, const KernelContext& context,
                                 size_t first) {
  const Attributes& attributes = *arguments.attributes;
  cpu::AttentionOptions options;
  options.scale = attributes.scale;
  options.window = attributes.window;
  if (attributes.probability > 0) {
    const TensorView& samples = arguments.inputs[first + 3];
    ATHANOR_ASSERT(samples.present() && samples.dtype == DType::int64);
    options.dropout = {.probability = attributes.probability,
                       .seed = context.step->seed,
                       .name_hash = arguments.name_hash,
                       .step = context.step->step,
                       .first_head = 0,
                       .sample_ids = samples.as<const int64_t>()};
  }
  return options;
}

void run_attention(const KernelArguments& arguments, const KernelContext& context) {
  const auto& in = arguments.inputs;
  cpu::AttentionForward call;
  call.shape = shape_of(in[0].shape, in[1].shape);
  call.options = options_of(arguments, context, 3);
  call.query_tokens = call.key_tokens = tokens_of(arguments, 3);
  call.q = input_rows(in[0]);
  call.k = input_rows(in[1]);
  call.v = input_rows(in[2]);
  call.out = output_rows(arguments.outputs[0]);
  call.logsumexp = output_rows(arguments.outputs[1]);
  attention_forward(call, *context.team, arguments.workspace.data());
}

void run_attention_gradient(const KernelArguments& arguments, const KernelContext& context) {
  const auto& in = arguments.inputs;
  cpu::AttentionBackward call;
  call.shape = shape_of(in[1].shape, in[2].shape);
  call.options = options_of(arguments, context, 6);
  call.query_tokens = call.key_tokens = tokens_of(arguments, 6);
  call.dout = input_rows(in[0]);
  call.q = input_rows(in[1]);
  call.k = input_rows(in[2]);
  call.v = input_rows(in[3]);
  call.out = input_rows(in[4]);
  call.logsumexp = input_rows(in[5]);
  call.dq = output_rows(arguments.outputs[0]);
  call.dk = output_rows(arguments.outputs[1]);
  call.dv = output_rows(arguments.outputs[2]);
  attention_backward(call, *context.team, arguments.workspace.data());
}

}  // namespace

void add_cpu_attention_kernels(KernelTable& table) {
  const Kernel forward{.run = run_attention,
                       .workspace_bytes = [](const Attributes&, std::span<const OperandType> inputs,
                                             std::span<const OperandType>, int threads) {
                         return attention_workspace_bytes(shape_of(inputs[0].shape, inputs[1].shape),
                                                          AttentionDirection::forward, threads);
                       }};
  const Kernel backward{.run = run_attention_gradient,
                        .workspace_bytes = [](const Attributes&, std::span<const OperandType> inputs,
                                              std::span<const OperandType>, int threads) {
                          return attention_workspace_bytes(shape_of(inputs[1].shape, inputs[2].shape),
                                                           AttentionDirection::backward, threads);
                        }};
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) {
    table.set(OperationKind::attention, dtype, forward);
    table.set(OperationKind::attention_gradient, dtype, backward);
  }
}

}  // namespace athanor
