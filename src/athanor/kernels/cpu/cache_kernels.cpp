// Kernel table entries of the key-value cache, of the last token of each sample and of soft caps.
#include <cstring>

#include "athanor/kernels/cpu/activation.h"
#include "athanor/kernels/cpu/adapters.h"
#include "athanor/kernels/cpu/cached_attention.h"

namespace athanor::cpu {

namespace {

using Types = std::span<const OperandType>;

CacheLayout layout_of(const Shape& cache) {
  return {cache[0], cache[1], cache[2], cache[3]};
}

// The operands that address the cache begin at input `first`.
CacheTokens tokens_of(const KernelArguments& a, size_t first) {
  const Shape& tokens = a.inputs[0].shape;
  return {tokens[0], tokens[1], a.inputs[first].as<int32_t>(), a.inputs[first + 1].as<int32_t>(),
          a.inputs[first + 2].as<int32_t>()};
}

void run_cache_write(const KernelArguments& a, const KernelContext& context) {
  const TensorView &keys = a.outputs[0], &values = a.outputs[1];
  for (const TensorView* view : {&a.inputs[1], &keys, &values}) {
    ATHANOR_ASSERT(view->dtype == a.inputs[0].dtype, "keys in {} and {}", name_of(a.inputs[0].dtype),
                   name_of(view->dtype));
  }
  cache_write(*context.team, {.layout = layout_of(keys.shape),
                              .tokens = tokens_of(a, 2),
                              .k = Matrix(a.inputs[0]).view(),
                              .v = Matrix(a.inputs[1]).view(),
                              .key_cache = keys.data,
                              .value_cache = values.data});
}

void run_cached_attention(const KernelArguments& a, const KernelContext& context) {
  const TensorView &q = a.inputs[0], &keys = a.inputs[1], &values = a.inputs[2];
  ATHANOR_ASSERT(keys.dtype == values.dtype);
  cached_attention(*context.team,
                   {.layout = layout_of(keys.shape),
                    .tokens = tokens_of(a, 3),
                    .query_heads = q.shape[2],
                    .scale = a.attributes->scale,
                    .window = a.attributes->window,
                    .q = Matrix(q).view(),
                    .key_cache = keys.data,
                    .value_cache = values.data,
                    .cache_type = keys.dtype,
                    .out = Matrix(a.outputs[0]).view()},
                   a.workspace.data());
}

void run_last_token(const KernelArguments& a, const KernelContext&) {
  const Matrix x(a.inputs[0]), y(a.outputs[0]);
  ATHANOR_ASSERT(x.dtype == y.dtype);
  const auto bytes = static_cast<size_t>(x.features) * size_of(x.dtype);
  const int64_t samples = a.inputs[0].shape[0], tokens = a.inputs[0].shape[1];
  for (int64_t sample = 0; sample < samples; ++sample) {
    const int64_t length = a.inputs[1].as<int32_t>()[sample];
    ATHANOR_ASSERT(length >= 0 && length <= tokens, "{} tokens of {}", length, tokens);
    std::byte* const to = y.view().at(sample).data;
    if (length == 0) {
      std::memset(to, 0, bytes);
    } else {
      std::memcpy(to, x.view().at(sample * tokens + length - 1).data, bytes);
    }
  }
}

void run_soft_cap(const KernelArguments& a, const KernelContext& context) {
  const Matrix x(a.inputs[0]), y(a.outputs[0]);
  soft_cap(*context.team, y.rows, y.features, static_cast<float>(a.attributes->soft_cap), x.view(), y.view());
}

}  // namespace

void add_cache_kernels(KernelTable& table) {
  using enum OperationKind;
  set_storage_types(table, OperationKind::cache_write, {.run = run_cache_write});
  set_storage_types(table, OperationKind::cached_attention,
                    {.run = run_cached_attention,
                     .workspace_bytes = [](const Attributes& attributes, Types in, Types, int threads) {
                       const Shape& q = in[0].shape;
                       return cached_attention_workspace_bytes(layout_of(in[1].shape), q[1], q[2],
                                                               attributes.scale, threads);
                     }});
  set_storage_types(table, last_token, {.run = run_last_token});
  set_storage_types(table, OperationKind::soft_cap, {.run = run_soft_cap});
}

}  // namespace athanor::cpu
