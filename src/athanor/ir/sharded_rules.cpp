// Costs and shapes of the operations that a model on several ranks adds.
#include <fmt/core.h>

#include <algorithm>

#include "athanor/ir/operation_rules.h"

namespace athanor::rules {

namespace {

double bytes_of(const OperandType& type) {
  return type.present ? static_cast<double>(type.shape.elements()) * static_cast<double>(size_of(type.dtype))
                      : 0;
}

double bytes_of(Types types) {
  double bytes = 0;
  for (const OperandType& type : types) bytes += bytes_of(type);
  return bytes;
}

Shape tokens_of(const Shape& shape) {
  return {shape[0], shape[1]};
}

Problem expect(std::string_view name, const OperandType& type, const Shape& shape) {
  if (!type.present || type.shape == shape) return std::nullopt;
  return fmt::format("{} is {} where {} is needed", name, to_text(type.shape), to_text(shape));
}

template <class... More>
Problem first_of(Problem problem, More... more) {
  if (problem) return problem;
  if constexpr (sizeof...(more) > 0) return first_of(std::move(more)...);
  return std::nullopt;
}

// q, k, v and what the mask compares, from input `q` on and from `masks` on; `random` are the operands of
// dropout.
Problem check_part(const Attributes& attributes, Types queries, Types masks, Types random) {
  const OperandType &q = queries[0], &k = queries[1], &v = queries[2];
  if (q.shape.rank() != 4 || k.shape.rank() != 4) return "q and k must have rank 4";
  if (k.shape[2] == 0 || q.shape[2] % k.shape[2] != 0) {
    return fmt::format("{} query heads are no multiple of {} key heads", q.shape[2], k.shape[2]);
  }
  if (attributes.probability > 0 && !(random[0].present && random[1].present && random[2].present)) {
    return "dropout of scores needs indices, key_indices and sample_ids";
  }
  const Shape tokens = tokens_of(q.shape), keys = tokens_of(k.shape);
  return first_of(expect("k", k, {q.shape[0], k.shape[1], k.shape[2], q.shape[3]}), expect("v", v, k.shape),
                  expect("positions", masks[0], tokens), expect("documents", masks[1], tokens),
                  expect("key_positions", masks[2], keys), expect("key_documents", masks[3], keys),
                  expect("indices", random[0], tokens), expect("key_indices", random[1], keys),
                  expect("sample_ids", random[2], {q.shape[0]}));
}

Shape heads_of(const Shape& query) {
  return {query[0], query[1], query[2]};
}

// FLOPs of one product over the pairs of S queries and T keys that are visible: half of them when all parts
// of a ring are taken together.
double part_flops(const Attributes& attributes, const Shape& query, const Shape& key) {
  const int64_t all = key[1] * std::max(1, attributes.ranks);
  const double share = all == 0 ? 0
                                : static_cast<double>(visible_pairs(all, attributes.window)) /
                                      (static_cast<double>(all) * static_cast<double>(all));
  return 2 * share * static_cast<double>(query.elements()) * static_cast<double>(key[1]);
}

Problem check_logits(const Attributes& attributes, const OperandType& logits) {
  if (logits.shape.rank() != 3) return fmt::format("logits are {}", to_text(logits.shape));
  if (attributes.extent <= 0) return "a part of a vocabulary without its extent";
  if (logits.shape[2] > attributes.extent) {
    return fmt::format("{} logits are no part of a vocabulary of {}", logits.shape[2], attributes.extent);
  }
  return std::nullopt;
}

Problem check_group(const Attributes& attributes, const Placement& placement) {
  if (attributes.ranks < 1) return fmt::format("an axis of {} ranks", attributes.ranks);
  if (placement.repeat < 1 || attributes.ranks % placement.repeat != 0 || placement.unit < 1) {
    return fmt::format("{} on {} ranks", to_text(placement), attributes.ranks);
  }
  return std::nullopt;
}

Problem expect_part(const Attributes& attributes, const Placement& placement, const Shape& whole,
                    const OperandType& part) {
  if (placement.kind != PlacementKind::shard || placement.dim >= whole.rank()) {
    return fmt::format("{} of {}", to_text(placement), to_text(whole));
  }
  if (auto problem = check_group(attributes, placement)) return problem;
  return expect(
      fmt::format("the part {} of {} on {} ranks", to_text(placement), to_text(whole), attributes.ranks),
      part,
      storage_shape(whole, placements_of(attributes.axis, placement),
                    mesh_of(attributes.axis, attributes.ranks)));
}

}  // namespace

Cost cost_attention_part(const Attributes& attributes, Types inputs, Types outputs) {
  return {.flops = 2 * part_flops(attributes, inputs[0].shape, inputs[1].shape),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_attention_part_gradient(const Attributes& attributes, Types inputs, Types outputs) {
  return {.flops = 5 * part_flops(attributes, inputs[1].shape, inputs[2].shape),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

// Bytes that each rank of an all_reduce sends: all of it twice but for its own share.
static double reduced_bytes(const Attributes& attributes, double bytes) {
  const bool repeats = attributes.from.kind == PlacementKind::shard;
  const double ranks = repeats ? attributes.from.repeat : attributes.ranks;
  return 2 * bytes * (ranks - 1) / ranks;
}

Cost cost_all_reduce(const Attributes& attributes, Types inputs, Types outputs) {
  return {.flops = 0,
          .bytes = bytes_of(inputs) + bytes_of(outputs),
          .sent = reduced_bytes(attributes, bytes_of(inputs))};
}

Cost cost_reduce_members(const Attributes& attributes, Types, Types outputs) {
  const double bytes =
      static_cast<double>(attributes.extent) * static_cast<double>(size_of(outputs[0].dtype));
  return {.flops = 0, .bytes = 2 * bytes, .sent = reduced_bytes(attributes, bytes)};
}

Cost cost_all_gather(const Attributes& attributes, Types inputs, Types outputs) {
  return {.flops = 0,
          .bytes = bytes_of(inputs) + bytes_of(outputs),
          .sent = bytes_of(inputs) * (attributes.ranks - 1)};
}

Cost cost_reduce_scatter(const Attributes& attributes, Types inputs, Types outputs) {
  return {.flops = 0,
          .bytes = bytes_of(inputs) + bytes_of(outputs),
          .sent = bytes_of(outputs) * (attributes.ranks - 1)};
}

Cost cost_all_to_all(const Attributes& attributes, Types inputs, Types outputs) {
  const double ranks = attributes.ranks;
  return {.flops = 0,
          .bytes = bytes_of(inputs) + bytes_of(outputs),
          .sent = bytes_of(inputs) * (ranks - 1) / ranks};
}

Cost cost_shift(const Attributes& attributes, Types inputs, Types outputs) {
  return {.flops = 0,
          .bytes = bytes_of(inputs) + bytes_of(outputs),
          .sent = attributes.ranks > 1 ? bytes_of(inputs) : 0};
}

Problem check_attention_part(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = check_part(attributes, inputs.first(3), inputs.subspan(3, 4), inputs.subspan(9, 3))) {
    return problem;
  }
  if (inputs[7].present != inputs[8].present) return "out_before goes with logsumexp_before";
  const Shape& query = inputs[0].shape;
  return first_of(expect("out_before", inputs[7], query),
                  expect("logsumexp_before", inputs[8], heads_of(query)), expect("out", outputs[0], query),
                  expect("logsumexp", outputs[1], heads_of(query)));
}

Problem check_attention_part_gradient(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem =
          check_part(attributes, inputs.subspan(1, 3), inputs.subspan(6, 4), inputs.subspan(13, 3))) {
    return problem;
  }
  const Shape &query = inputs[1].shape, &key = inputs[2].shape;
  return first_of(expect("dout", inputs[0], query), expect("out", inputs[4], query),
                  expect("logsumexp", inputs[5], heads_of(query)), expect("dq_before", inputs[10], query),
                  expect("dk_before", inputs[11], key), expect("dv_before", inputs[12], key),
                  expect("dq", outputs[0], query), expect("dk", outputs[1], key),
                  expect("dv", outputs[2], key));
}

Problem check_vocabulary_max(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = check_logits(attributes, inputs[0])) return problem;
  return expect("row_max", outputs[0], tokens_of(inputs[0].shape));
}

Problem check_vocabulary_sums(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = check_logits(attributes, inputs[0])) return problem;
  const Shape tokens = tokens_of(inputs[0].shape);
  return first_of(expect("labels", inputs[1], tokens), expect("row_max", inputs[2], tokens),
                  expect("sums", outputs[0], {tokens[0], tokens[1], 3}));
}

Problem check_vocabulary_loss(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = check_logits(attributes, inputs[0])) return problem;
  const Shape tokens = tokens_of(inputs[0].shape);
  if (outputs[1].present && !inputs[4].present) return "output dlogits without valid_tokens";
  return first_of(expect("labels", inputs[1], tokens), expect("row_max", inputs[2], tokens),
                  expect("sums", inputs[3], {tokens[0], tokens[1], 3}),
                  expect("valid_tokens", inputs[4], {1}), expect("token_loss", outputs[0], tokens),
                  expect("dlogits", outputs[1], inputs[0].shape));
}

Problem check_local_part(const Attributes& attributes, Types inputs, Types outputs) {
  return expect_part(attributes, attributes.to, inputs[0].shape, outputs[0]);
}

Problem check_all_gather(const Attributes& attributes, Types inputs, Types outputs) {
  return expect_part(attributes, attributes.from, outputs[0].shape, inputs[0]);
}

Problem check_all_to_all(const Attributes& attributes, Types inputs, Types outputs) {
  const Placement &from = attributes.from, &to = attributes.to;
  const Shape &x = inputs[0].shape, &y = outputs[0].shape;
  if (x.rank() != y.rank() || from.dim >= x.rank() || to.dim >= x.rank() || from.dim == to.dim) {
    return fmt::format("{} to {} of {}", to_text(from), to_text(to), to_text(x));
  }
  Shape whole = x;
  whole.set(from.dim, y[from.dim]);
  if (auto problem = expect_part(attributes, from, whole, inputs[0])) return problem;
  return expect_part(attributes, to, whole, outputs[0]);
}

Problem check_reduce_members(const Attributes& attributes, Types, Types outputs) {
  if (auto problem = check_group(attributes, attributes.from)) return problem;
  const int64_t length = outputs[0].shape.elements(), offset = attributes.offset, count = attributes.extent;
  if (offset >= 0 && count >= 0 && offset <= length && count <= length - offset) return std::nullopt;
  return fmt::format("elements [{}, {} + {}) of a bucket of {}", offset, offset, count, length);
}

Problem check_shift(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = check_group(attributes, {})) return problem;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (inputs[i].present != outputs[i].present) return "as many tensors must arrive as leave";
    if (auto problem = expect("what arrives", outputs[i], inputs[i].shape)) return problem;
  }
  return std::nullopt;
}

}  // namespace athanor::rules
