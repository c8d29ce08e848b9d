#include "athanor/ir/operation_rules.h"

#include <fmt/core.h>

#include <algorithm>

namespace athanor {

int64_t visible_pairs(int64_t sequence_length, int64_t window) {
  // The first `width` queries see 1, 2, .. width keys, every later one sees `width`.
  const int64_t width = window <= 0 ? sequence_length : std::min(window, sequence_length);
  return width * (width + 1) / 2 + (sequence_length - width) * width;
}

namespace rules {

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

// FLOPs of the product of a rows x inner and an inner x columns matrix.
double product_flops(int64_t rows, int64_t columns, int64_t inner) {
  return 2.0 * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(inner);
}

// FLOPs of one product over the visible (query, key) pairs of all samples and query heads.
double pair_flops(const Attributes& attributes, const Shape& query) {
  return 2.0 * static_cast<double>(query[3]) *
         static_cast<double>(visible_pairs(query[1], attributes.window)) *
         static_cast<double>(query[0] * query[2]);
}

// The shape with its last dim replaced, or dropped.
Shape with_last(Shape shape, int64_t size) {
  shape.set(-1, size);
  return shape;
}
Shape without_last(const Shape& shape) {
  Shape result;
  for (int dim = 0; dim + 1 < shape.rank(); ++dim) {
    result.append(shape[dim]);
    if (shape.bounded(dim)) result.set_bounded(dim);
  }
  return result;
}
// The first `dims` dims.
Shape leading(const Shape& shape, int dims) {
  Shape result;
  for (int dim = 0; dim < dims; ++dim) {
    result.append(shape[dim]);
    if (shape.bounded(dim)) result.set_bounded(dim);
  }
  return result;
}

Problem expect(std::string_view name, const OperandType& type, const Shape& shape) {
  if (!type.present || type.shape == shape) return std::nullopt;
  return fmt::format("{} is {} where {} is needed", name, to_text(type.shape), to_text(shape));
}

Problem expect_rank(std::string_view name, const OperandType& type, int rank) {
  if (type.shape.rank() == rank) return std::nullopt;
  return fmt::format("{} is {} where a shape of rank {} is needed", name, to_text(type.shape), rank);
}

Problem expect_rank_at_least(std::string_view name, const OperandType& type, int rank) {
  if (type.shape.rank() >= rank) return std::nullopt;
  return fmt::format("{} is {} where a shape of rank {} or more is needed", name, to_text(type.shape), rank);
}

template <class... More>
Problem first_of(Problem problem, More... more) {
  if (problem) return problem;
  if constexpr (sizeof...(more) > 0) return first_of(std::move(more)...);
  return std::nullopt;
}

// q [B,S,H,E], k and v [B,S,K,E], out [B,S,H,E], logsumexp [B,S,H] and the operands that masks compare.
struct AttentionTypes {
  const OperandType &q, &k, &v, &out, &logsumexp, &positions, &documents, &indices, &sample_ids;
};

Problem check_attention_shapes(const Attributes& attributes, const AttentionTypes& types) {
  if (auto problem = first_of(expect_rank("q", types.q, 4), expect_rank("k", types.k, 4))) return problem;
  const Shape &query = types.q.shape, &key = types.k.shape;
  const Shape tokens = leading(query, 2);
  if (key[2] == 0 || query[2] % key[2] != 0) {
    return fmt::format("{} query heads are no multiple of {} key heads", query[2], key[2]);
  }
  Shape expected_key = query;
  expected_key.set(2, key[2]);
  if (attributes.probability > 0 && !(types.indices.present && types.sample_ids.present)) {
    return "dropout of scores needs indices and sample_ids";
  }
  return first_of(expect("k", types.k, expected_key), expect("v", types.v, expected_key),
                  expect("out", types.out, query), expect("logsumexp", types.logsumexp, leading(query, 3)),
                  expect("positions", types.positions, tokens), expect("documents", types.documents, tokens),
                  expect("indices", types.indices, tokens),
                  expect("sample_ids", types.sample_ids, leading(query, 1)));
}

}  // namespace

Cost cost_none(const Attributes&, Types, Types) {
  return {};
}

Cost cost_elementwise(const Attributes&, Types inputs, Types outputs) {
  return {.flops = 0, .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_embedding(const Attributes&, Types inputs, Types outputs) {
  // Only the rows that are looked up are read.
  const double rows =
      static_cast<double>(outputs[0].shape.elements()) * static_cast<double>(size_of(inputs[0].dtype));
  return {.flops = 0, .bytes = rows + bytes_of(inputs[1]) + bytes_of(outputs[0])};
}

Cost cost_embedding_gradient(const Attributes&, Types inputs, Types outputs) {
  // Only the rows that are looked up are read and written.
  const double rows =
      static_cast<double>(inputs[0].shape.elements()) * static_cast<double>(size_of(outputs[0].dtype));
  return {.flops = 0, .bytes = bytes_of(inputs) + 2 * rows};
}

Cost cost_matmul(const Attributes&, Types inputs, Types outputs) {
  const Shape& weight = inputs[1].shape;
  return {.flops = product_flops(inputs[0].shape.rows(), weight[0], weight[1]),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_matmul_input_gradient(const Attributes&, Types inputs, Types outputs) {
  const Shape& weight = inputs[1].shape;
  return {.flops = product_flops(inputs[0].shape.rows(), weight[1], weight[0]),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_matmul_weight_gradient(const Attributes&, Types inputs, Types outputs) {
  const Shape& weight = outputs[0].shape;
  return {.flops = product_flops(weight[0], weight[1], inputs[0].shape.rows()),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_attention(const Attributes& attributes, Types inputs, Types outputs) {
  // Two products over the visible pairs: scores, and their weighted sum of values.
  return {.flops = 2 * pair_flops(attributes, inputs[0].shape),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_attention_gradient(const Attributes& attributes, Types inputs, Types outputs) {
  // Five products: scores again, gradients of probabilities, values, queries and keys.
  return {.flops = 5 * pair_flops(attributes, inputs[1].shape),
          .bytes = bytes_of(inputs) + bytes_of(outputs)};
}

Cost cost_cache_write(const Attributes&, Types inputs, Types) {
  return {.flops = 0, .bytes = 2 * (bytes_of(inputs[0]) + bytes_of(inputs[1]))};
}

Cost cost_cached_attention(const Attributes& attributes, Types inputs, Types outputs) {
  const Shape &query = inputs[0].shape, &cache = inputs[1].shape;
  const int64_t keys = attributes.window > 0 ? std::min(attributes.window, cache[2]) : cache[2];
  // The rows of the batch are read, not those of other sequences.
  const double cached = static_cast<double>(query[0] * cache[1] * keys * cache[3]) *
                        static_cast<double>(size_of(inputs[1].dtype));
  return {.flops = 2 * product_flops(query.tokens() * query[2], keys, query[3]),
          .bytes = bytes_of(inputs[0]) + 2 * cached + bytes_of(outputs)};
}

Cost cost_last_token(const Attributes&, Types, Types outputs) {
  return {.flops = 0, .bytes = 2 * bytes_of(outputs)};
}

Cost cost_update(const Attributes&, Types inputs, Types outputs) {
  // State is read and written; the working copy, before the last output, is only written.
  const double working = bytes_of(outputs[outputs.size() - 2]);
  return {.flops = 0, .bytes = bytes_of(inputs) + 2 * bytes_of(outputs) - working};
}

Problem check_none(const Attributes&, Types, Types) {
  return std::nullopt;
}

Problem check_same(const Attributes&, Types inputs, Types outputs) {
  const Shape* first = nullptr;
  for (const Types types : {inputs, outputs}) {
    for (const OperandType& type : types) {
      if (!type.present) continue;
      if (first == nullptr) first = &type.shape;
      if (type.shape != *first) {
        return fmt::format("{} and {} differ where all shapes must be one", to_text(*first),
                           to_text(type.shape));
      }
    }
  }
  return std::nullopt;
}

Problem check_embedding(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = first_of(expect_rank("table", inputs[0], 2), expect_rank("ids", inputs[1], 2)))
    return problem;
  Shape expected = inputs[1].shape;
  expected.append(inputs[0].shape[1]);
  return expect("y", outputs[0], expected);
}

Problem check_embedding_gradient(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = first_of(expect_rank("ids", inputs[1], 2), expect_rank("dtable", outputs[0], 2)))
    return problem;
  Shape expected = inputs[1].shape;
  expected.append(outputs[0].shape[1]);
  return expect("dy", inputs[0], expected);
}

Problem check_matmul(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = first_of(expect_rank_at_least("x", inputs[0], 1), expect_rank("weight", inputs[1], 2))) {
    return problem;
  }
  const Shape &x = inputs[0].shape, &weight = inputs[1].shape;
  if ((attributes.activation != Activation::none) != outputs[1].present) {
    return outputs[1].present ? "output activated without an activation"
                              : "an activation without output activated";
  }
  const Shape y = with_last(x, weight[0]);
  return first_of(expect("x", inputs[0], with_last(x, weight[1])), expect("bias", inputs[2], {weight[0]}),
                  expect("y", outputs[0], y), expect("activated", outputs[1], y));
}

Problem check_matmul_input_gradient(const Attributes&, Types inputs, Types outputs) {
  if (auto problem =
          first_of(expect_rank_at_least("dy", inputs[0], 1), expect_rank("weight", inputs[1], 2))) {
    return problem;
  }
  const Shape &dy = inputs[0].shape, &weight = inputs[1].shape;
  const Shape dx = with_last(dy, weight[1]);
  return first_of(expect("dy", inputs[0], with_last(dy, weight[0])), expect("addend", inputs[2], dx),
                  expect("dx", outputs[0], dx));
}

Problem check_matmul_weight_gradient(const Attributes&, Types inputs, Types outputs) {
  if (auto problem =
          first_of(expect_rank_at_least("dy", inputs[0], 1), expect_rank_at_least("x", inputs[1], 1))) {
    return problem;
  }
  const Shape &dy = inputs[0].shape, &x = inputs[1].shape;
  return first_of(expect("x", inputs[1], with_last(dy, x[-1])),
                  expect("dweight", outputs[0], {dy[-1], x[-1]}));
}

Problem check_bias_gradient(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("dy", inputs[0], 1)) return problem;
  return expect("dbias", outputs[0], {inputs[0].shape[-1]});
}

Problem check_norm(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("x", inputs[0], 2)) return problem;
  const Shape& x = inputs[0].shape;
  const Shape feature{x[-1]};
  const OperandType &addend = inputs.back(), &total = outputs.back();
  if (total.present && !addend.present) return "output total without an addend";
  // What stands between is layer_norm's bias, and the statistics: mean and rstd, or rstd alone.
  for (const OperandType& vector : inputs.subspan(1, inputs.size() - 2)) {
    if (auto problem = expect("weight or bias", vector, feature)) return problem;
  }
  for (const OperandType& statistic : outputs.subspan(1, outputs.size() - 2)) {
    if (auto problem = expect("mean or rstd", statistic, without_last(x))) return problem;
  }
  return first_of(expect("addend", addend, x), expect("y", outputs[0], x), expect("total", total, x));
}

Problem check_norm_input_gradient(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("x", inputs[1], 2)) return problem;
  const Shape& x = inputs[1].shape;
  for (const OperandType& statistic : inputs.subspan(3, inputs.size() - 4)) {
    if (auto problem = expect("mean or rstd", statistic, without_last(x))) return problem;
  }
  return first_of(expect("dy", inputs[0], x), expect("weight", inputs[2], {x[-1]}),
                  expect("residual_gradient", inputs.back(), x), expect("dx", outputs[0], x));
}

Problem check_norm_weight_gradient(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("x", inputs[1], 2)) return problem;
  const Shape& x = inputs[1].shape;
  for (const OperandType& statistic : inputs.subspan(2)) {
    if (auto problem = expect("mean or rstd", statistic, without_last(x))) return problem;
  }
  for (const OperandType& gradient : outputs) {
    if (auto problem = expect("dweight or dbias", gradient, {x[-1]})) return problem;
  }
  return expect("dy", inputs[0], x);
}

Problem check_rotary(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank("x", inputs[0], 4)) return problem;
  const Shape& x = inputs[0].shape;
  if (x[3] % 2 != 0) return fmt::format("the head dim {} is odd", x[3]);
  return first_of(expect("positions", inputs[1], leading(x, 2)), expect("y", outputs[0], x));
}

Problem check_attention(const Attributes& attributes, Types inputs, Types outputs) {
  return check_attention_shapes(attributes, {.q = inputs[0],
                                             .k = inputs[1],
                                             .v = inputs[2],
                                             .out = outputs[0],
                                             .logsumexp = outputs[1],
                                             .positions = inputs[3],
                                             .documents = inputs[4],
                                             .indices = inputs[5],
                                             .sample_ids = inputs[6]});
}

Problem check_attention_gradient(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem = check_attention_shapes(attributes, {.q = inputs[1],
                                                         .k = inputs[2],
                                                         .v = inputs[3],
                                                         .out = inputs[4],
                                                         .logsumexp = inputs[5],
                                                         .positions = inputs[6],
                                                         .documents = inputs[7],
                                                         .indices = inputs[8],
                                                         .sample_ids = inputs[9]})) {
    return problem;
  }
  const Shape &q = inputs[1].shape, &k = inputs[2].shape;
  return first_of(expect("dout", inputs[0], q), expect("dq", outputs[0], q), expect("dk", outputs[1], k),
                  expect("dv", outputs[2], k));
}

// A cache [R,K,C,E] for tokens of [B,S,..] with heads of E elements, and the operands that address it.
static Problem check_cache(const OperandType& tokens, const OperandType& keys, const OperandType& values,
                           Types addresses) {
  if (auto problem = first_of(expect_rank("key_cache", keys, 4), expect("value_cache", values, keys.shape))) {
    return problem;
  }
  if (keys.shape[2] < 1) return "a cache without slots";
  if (keys.shape[3] != tokens.shape[3]) {
    return fmt::format("a cache of heads of {} for heads of {}", keys.shape[3], tokens.shape[3]);
  }
  const Shape batch = leading(tokens.shape, 1);
  return first_of(expect("positions", addresses[0], leading(tokens.shape, 2)),
                  expect("lengths", addresses[1], batch), expect("cache_rows", addresses[2], batch));
}

Problem check_cache_write(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = first_of(expect_rank("k", inputs[0], 4), expect("v", inputs[1], inputs[0].shape),
                              expect_rank("key_cache", outputs[0], 4))) {
    return problem;
  }
  if (inputs[0].shape[2] != outputs[0].shape[1]) {
    return fmt::format("a cache of {} heads for {}", outputs[0].shape[1], inputs[0].shape[2]);
  }
  return check_cache(inputs[0], outputs[0], outputs[1], inputs.subspan(2));
}

Problem check_cached_attention(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = first_of(expect_rank("q", inputs[0], 4), expect_rank("key_cache", inputs[1], 4),
                              expect("out", outputs[0], inputs[0].shape))) {
    return problem;
  }
  const int64_t heads = inputs[0].shape[2], key_heads = inputs[1].shape[1];
  if (key_heads == 0 || heads % key_heads != 0) {
    return fmt::format("{} query heads are no multiple of {} key heads", heads, key_heads);
  }
  return check_cache(inputs[0], inputs[1], inputs[2], inputs.subspan(3));
}

Problem check_last_token(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("x", inputs[0], 3)) return problem;
  Shape expected = inputs[0].shape;
  expected.set(1, 1);
  return first_of(expect("lengths", inputs[1], leading(inputs[0].shape, 1)),
                  expect("y", outputs[0], expected));
}

Problem check_load_tokens(const Attributes&, Types, Types outputs) {
  if (auto problem = expect_rank("token_ids", outputs[0], 2)) return problem;
  const Shape& tokens = outputs[0].shape;
  return first_of(expect("positions", outputs[1], tokens), expect("lengths", outputs[2], leading(tokens, 1)),
                  expect("cache_rows", outputs[3], leading(tokens, 1)));
}

Problem check_dropout(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("x", inputs[0], 2)) return problem;
  const Shape& x = inputs[0].shape;
  return first_of(expect("sample_ids", inputs[1], leading(x, 1)), expect("indices", inputs[2], leading(x, 2)),
                  expect("addend", inputs[3], x), expect("y", outputs[0], x));
}

Problem check_cross_entropy(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank("logits", inputs[0], 3)) return problem;
  const Shape &logits = inputs[0].shape, tokens = leading(logits, 2);
  if (outputs[1].present && !inputs[2].present) return "output dlogits without valid_tokens";
  return first_of(expect("labels", inputs[1], tokens), expect("valid_tokens", inputs[2], {1}),
                  expect("token_loss", outputs[0], tokens), expect("dlogits", outputs[1], logits));
}

Problem check_total(const Attributes&, Types, Types outputs) {
  return expect("the total", outputs[0], {1});
}

Problem check_slice(const Attributes& attributes, Types inputs, Types outputs) {
  if (auto problem =
          first_of(expect_rank_at_least("x", inputs[0], 2), expect_rank_at_least("y", outputs[0], 2))) {
    return problem;
  }
  const Shape &x = inputs[0].shape, &y = outputs[0].shape;
  if (leading(x, 2) != leading(y, 2)) {
    return fmt::format("y {} has other tokens than x {}", to_text(y), to_text(x));
  }
  if (attributes.offset < 0 || attributes.offset > x.elements_per_token() - y.elements_per_token()) {
    return fmt::format("elements [{}, {} + {}) of a row of {}", attributes.offset, attributes.offset,
                       y.elements_per_token(), x.elements_per_token());
  }
  return std::nullopt;
}

Problem check_concat(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = expect_rank_at_least("y", outputs[0], 2)) return problem;
  const Shape& y = outputs[0].shape;
  int64_t elements = 0;
  for (const OperandType& x : inputs) {
    if (auto problem = expect_rank_at_least("x", x, 2)) return problem;
    if (leading(x.shape, 2) != leading(y, 2)) {
      return fmt::format("y {} has other tokens than x {}", to_text(y), to_text(x.shape));
    }
    elements += x.shape.elements_per_token();
  }
  if (elements == y.elements_per_token()) return std::nullopt;
  return fmt::format("rows of {} elements make no row of {}", elements, y.elements_per_token());
}

Problem check_reshape(const Attributes&, Types inputs, Types outputs) {
  const Shape &x = inputs[0].shape, &y = outputs[0].shape;
  // The rows of tokens may stand apart in memory, so they must stay rows.
  const bool rows = x.rank() > 2 || y.rank() > 2;
  if (x.elements() == y.elements() && (!rows || x.tokens() == y.tokens())) return std::nullopt;
  return fmt::format("x {} has other {} than y {}", to_text(x), rows ? "rows" : "elements", to_text(y));
}

Problem check_load_batch(const Attributes&, Types, Types outputs) {
  if (auto problem = expect_rank("token_ids", outputs[0], 2)) return problem;
  const Shape& tokens = outputs[0].shape;
  for (const OperandType& type : outputs.first(outputs.size() - 1)) {
    if (auto problem = expect("a batch tensor", type, tokens)) return problem;
  }
  return expect("sample_ids", outputs.back(), leading(tokens, 1));
}

Problem check_norms(const Attributes&, Types inputs, Types outputs) {
  return first_of(expect_rank("the bucket", inputs[0], 1), expect_rank("norms", outputs[0], 1));
}

Problem check_clip(const Attributes&, Types inputs, Types outputs) {
  return first_of(expect_rank("norms", inputs[0], 1), expect("valid_tokens", inputs[1], {1}),
                  expect("gradient_norm", outputs[0], {1}), expect("clip_factor", outputs[1], {1}),
                  expect("skip", outputs[2], {1}));
}

Problem check_update(const Attributes&, Types inputs, Types outputs) {
  if (auto problem = first_of(expect_rank("gradient", inputs[0], 1), expect("clip_factor", inputs[1], {1}),
                              expect("skip", inputs[2], {1}))) {
    return problem;
  }
  for (const OperandType& bucket : outputs) {
    if (auto problem = expect("a bucket", bucket, inputs[0].shape)) return problem;
  }
  return std::nullopt;
}

Problem check_lamb_norms(const Attributes&, Types inputs, Types outputs) {
  const Shape& bucket = inputs[0].shape;
  return first_of(expect_rank("gradient", inputs[0], 1), expect("clip_factor", inputs[1], {1}),
                  expect("skip", inputs[2], {1}), expect("master", inputs[3], bucket),
                  expect("first_moment", inputs[4], bucket), expect("second_moment", inputs[5], bucket),
                  expect_rank("norms", outputs[0], 1));
}

}  // namespace rules
}  // namespace athanor
