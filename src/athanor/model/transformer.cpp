// The decoder-only transformer that the GPT-2 and Llama families share; every difference is a ModelConfig
// field.

#include <algorithm>
#include <cmath>

#include "athanor/base/error.h"
#include "athanor/ir/layer_name.h"
#include "athanor/model/builder.h"
#include "athanor/model/model.h"

namespace athanor {

namespace {

class TableBuilder {
 public:
  TableBuilder(std::string name, const ModelConfig& config) : config_(config) {
    table_.name = std::move(name);
  }

  void matrix(const std::string& name, int64_t rows, int64_t columns, bool into_residual = false) {
    const double deviation =
        into_residual ? config_.initial_deviation / std::sqrt(2.0 * static_cast<double>(config_.layers))
                      : config_.initial_deviation;
    add(name, {rows, columns}, ParameterRole::matrix, 0, deviation);
  }
  void embedding(const std::string& name, int64_t rows) {
    add(name, {rows, config_.width}, ParameterRole::embedding, 0, config_.initial_deviation);
  }
  void bias(const std::string& name, int64_t length) {
    if (config_.bias) add(name, {length}, ParameterRole::bias, 0, 0);
  }
  void norm(const std::string& name, int64_t length) {
    add(name + ".weight", {length}, ParameterRole::norm, 1, 0);
    if (config_.norm == NormKind::layer_norm && config_.bias)
      add(name + ".bias", {length}, ParameterRole::bias, 0, 0);
  }
  void head_norm(const std::string& name, int64_t length) {
    add(name + ".weight", {length}, ParameterRole::norm, 1, 0);
  }
  BucketTable take() { return std::move(table_); }

 private:
  void add(const std::string& name, Shape shape, ParameterRole role, double mean, double deviation) {
    table_.members.push_back({.name = name,
                              .shape = shape,
                              .role = role,
                              .offset = table_.length(),
                              .initial_mean = mean,
                              .initial_deviation = deviation});
  }
  const ModelConfig& config_;
  BucketTable table_;
};

BucketTable embedding_table(const ModelConfig& config) {
  TableBuilder table("embedding", config);
  table.embedding("embedding.token.weight", config.vocabulary);
  if (config.positions == PositionKind::learned) {
    table.embedding("embedding.position.weight", config.maximum_positions);
  }
  return table.take();
}

// Query, key, value and gate, up stand side by side, so that fusion can take each group as one product.
BucketTable block_table(const ModelConfig& config) {
  const int64_t query = config.heads * config.head_dim_or_default();
  const int64_t key = config.key_value_heads_or_default() * config.head_dim_or_default();
  const int64_t features = config.feed_forward_or_default();
  const std::string prefix = "block.{layer}.";
  TableBuilder table("block.{layer}", config);
  table.norm(prefix + "attention_norm", config.width);
  table.matrix(prefix + "attention.query.weight", query, config.width);
  table.matrix(prefix + "attention.key.weight", key, config.width);
  table.matrix(prefix + "attention.value.weight", key, config.width);
  table.bias(prefix + "attention.query.bias", query);
  table.bias(prefix + "attention.key.bias", key);
  table.bias(prefix + "attention.value.bias", key);
  if (config.query_key_norm) {
    table.head_norm(prefix + "attention.query_norm", config.head_dim_or_default());
    table.head_norm(prefix + "attention.key_norm", config.head_dim_or_default());
  }
  table.matrix(prefix + "attention.output.weight", config.width, query, true);
  table.bias(prefix + "attention.output.bias", config.width);
  if (!config.parallel_block) table.norm(prefix + "mlp_norm", config.width);
  if (config.feed_forward_kind == FeedForwardKind::swiglu) {
    table.matrix(prefix + "mlp.gate.weight", features, config.width);
    table.matrix(prefix + "mlp.up.weight", features, config.width);
    table.bias(prefix + "mlp.gate.bias", features);
  } else {
    table.matrix(prefix + "mlp.up.weight", features, config.width);
  }
  table.bias(prefix + "mlp.up.bias", features);
  table.matrix(prefix + "mlp.down.weight", config.width, features, true);
  table.bias(prefix + "mlp.down.bias", config.width);
  return table.take();
}

BucketTable head_table(const ModelConfig& config) {
  TableBuilder table("head", config);
  table.norm("final_norm", config.width);
  if (!config.tied_head) table.matrix("head.weight", config.vocabulary, config.width);
  return table.take();
}

struct Context {
  const ModelConfig& config;
  int64_t samples, tokens;
  bool training;
  bool cached = false;
  CacheShape cache = {};

  Shape token_shape() const { return {samples, tokens}; }
  Shape residual_shape() const { return {samples, tokens, config.width}; }
  double dropout() const { return training ? config.dropout : 0; }
};

ValueId batch_input(Builder& builder, const Context& context, const std::string& name) {
  if (const ValueId known = builder.graph().find(name); known != no_value) return known;
  if (name == "sample_ids") return builder.input(name, {context.samples}, DType::int64, Role::batch);
  if (name == "lengths" || name == "cache_rows")
    return builder.input(name, {context.samples}, DType::int32, Role::batch);
  return builder.input(name, context.token_shape(), DType::int32, Role::batch);
}

ValueId norm(Builder& builder, const Context& context, const std::string& name, ValueId x) {
  const bool centred = context.config.norm == NormKind::layer_norm;
  const ValueId weight = builder.parameter(name + ".weight");
  const ValueId bias = centred && context.config.bias ? builder.parameter(name + ".bias") : no_value;
  return builder.norm(name, x, weight, bias, context.config.norm_epsilon, centred);
}

ValueId linear(Builder& builder, const Context& context, const std::string& name, ValueId x) {
  const ValueId bias = context.config.bias ? builder.parameter(name + ".bias") : no_value;
  return builder.matmul(name, x, builder.parameter(name + ".weight"), bias);
}

// x where dropout is off, else a dropped-out copy `value_name`, keyed by `key`.
ValueId dropout(Builder& builder, const Context& context, const std::string& value_name,
                const std::string& key, ValueId x, Role role) {
  if (context.dropout() == 0) return x;
  Attributes attributes;
  attributes.probability = context.dropout();
  attributes.name = key;
  const ValueId y = builder.make(value_name, builder.graph().value(x).shape, role);
  const ValueId sample_ids = batch_input(builder, context, "sample_ids");
  const ValueId indices = batch_input(builder, context, "indices");
  builder.graph().add_operation(OperationKind::dropout, {x, sample_ids, indices, no_value}, {y}, attributes);
  return y;
}

// A query or key head tensor [B,S,heads,E]: per-head norm, then rotary positions, as configured.
ValueId head_tensor(Builder& builder, const Context& context, const std::string& name, ValueId product,
                    int64_t heads) {
  const ModelConfig& config = context.config;
  const Shape shape{context.samples, context.tokens, heads, config.head_dim_or_default()};
  ValueId x = builder.reshape(name + ".heads", product, shape);
  if (config.query_key_norm) {
    x = builder.norm(name + "_norm", x, builder.parameter(name + "_norm.weight"), no_value,
                     config.norm_epsilon, false);
  }
  if (config.positions == PositionKind::rotary) {
    Attributes attributes;
    attributes.theta = config.rope_theta;
    attributes.rope_factor = config.rope_factor;
    attributes.rope_low = config.rope_low;
    attributes.rope_high = config.rope_high;
    attributes.rope_original = config.rope_original;
    const ValueId y = builder.make(name + ".rotary", shape, Role::activation);
    builder.graph().add_operation(OperationKind::rotary, {x, batch_input(builder, context, "positions")}, {y},
                                  attributes);
    x = y;
  }
  return x;
}

struct Heads {
  ValueId query, key, value;
};

// Writes keys and values into the layer's cache and attends to what it then holds.
ValueId cached_attention(Builder& builder, const Context& context, const std::string& prefix, Heads heads,
                         const Attributes& attributes, ValueId out) {
  const int64_t groups = context.config.key_value_heads_or_default();
  const Shape shape{context.cache.rows, groups, cache_slots(context.cache, attributes.window),
                    context.config.head_dim_or_default()};
  const ValueId keys = builder.input(prefix + "key_cache", shape, DType::fp32, Role::cache);
  const ValueId values = builder.input(prefix + "value_cache", shape, DType::fp32, Role::cache);
  const ValueId positions = batch_input(builder, context, "positions");
  const ValueId lengths = batch_input(builder, context, "lengths");
  const ValueId rows = batch_input(builder, context, "cache_rows");
  builder.graph().add_operation(OperationKind::cache_write,
                                {heads.key, heads.value, positions, lengths, rows}, {keys, values});
  builder.graph().add_operation(OperationKind::cached_attention,
                                {heads.query, keys, values, positions, lengths, rows}, {out}, attributes);
  return out;
}

ValueId attention(Builder& builder, const Context& context, const std::string& prefix, ValueId x,
                  int64_t window) {
  const ModelConfig& config = context.config;
  const int64_t heads = config.heads, groups = config.key_value_heads_or_default(),
                dim = config.head_dim_or_default();
  const ValueId query = linear(builder, context, prefix + "query", x);
  const ValueId key = linear(builder, context, prefix + "key", x);
  const ValueId value = linear(builder, context, prefix + "value", x);
  const ValueId q = head_tensor(builder, context, prefix + "query", query, heads);
  const ValueId k = head_tensor(builder, context, prefix + "key", key, groups);
  const ValueId v =
      builder.reshape(prefix + "value.heads", value, {context.samples, context.tokens, groups, dim});
  Attributes attributes;
  attributes.scale = 1.0 / std::sqrt(static_cast<double>(dim));
  attributes.window = window;
  const ValueId out =
      builder.make(prefix + "mixed", {context.samples, context.tokens, heads, dim}, Role::activation);
  const Shape flat_shape{context.samples, context.tokens, heads * dim};
  if (context.cached) {
    cached_attention(builder, context, prefix, {q, k, v}, attributes, out);
    return linear(builder, context, prefix + "output", builder.reshape(prefix + "flat", out, flat_shape));
  }
  attributes.probability = context.dropout();
  attributes.name = prefix + "dropout";
  const bool random = context.dropout() > 0;
  if (!random) attributes.name.clear();
  const ValueId statistic =
      builder.make(prefix + "logsumexp", {context.samples, context.tokens, heads}, Role::statistic);
  builder.graph().add_operation(
      OperationKind::attention,
      {q, k, v, batch_input(builder, context, "positions"), batch_input(builder, context, "documents"),
       random ? batch_input(builder, context, "indices") : no_value,
       random ? batch_input(builder, context, "sample_ids") : no_value},
      {out, statistic}, attributes);
  return linear(builder, context, prefix + "output", builder.reshape(prefix + "flat", out, flat_shape));
}

ValueId feed_forward(Builder& builder, const Context& context, const std::string& prefix, ValueId x) {
  ValueId hidden = no_value;
  if (context.config.feed_forward_kind == FeedForwardKind::swiglu) {
    const ValueId gate = linear(builder, context, prefix + "gate", x);
    const ValueId up = linear(builder, context, prefix + "up", x);
    hidden = builder.binary(OperationKind::swiglu, prefix + "hidden", gate, up, Role::activation);
  } else {
    hidden =
        builder.unary(OperationKind::gelu, prefix + "hidden", linear(builder, context, prefix + "up", x));
  }
  return linear(builder, context, prefix + "down", hidden);
}

Graph block_graph(const Context& context, int64_t window, const std::string& name) {
  const std::string prefix = "block.{layer}.";
  Builder builder(name, block_table(context.config));
  const ValueId x = builder.input("residual_in", context.residual_shape(), DType::fp32, Role::residual);
  const ValueId normed = norm(builder, context, prefix + "attention_norm", x);
  ValueId mixed = attention(builder, context, prefix + "attention.", normed, window);
  mixed = dropout(builder, context, prefix + "attention.dropped", prefix + "attention.output_dropout", mixed,
                  Role::activation);
  const ValueId middle = builder.binary(OperationKind::add, "residual_middle", x, mixed, Role::residual);
  const ValueId mlp_input =
      context.config.parallel_block ? normed : norm(builder, context, prefix + "mlp_norm", middle);
  ValueId out = feed_forward(builder, context, prefix + "mlp.", mlp_input);
  out =
      dropout(builder, context, prefix + "mlp.dropped", prefix + "mlp.output_dropout", out, Role::activation);
  std::vector<ValueId> outputs{
      builder.binary(OperationKind::add, "residual_out", middle, out, Role::residual)};
  for (const char* cache : {"attention.key_cache", "attention.value_cache"}) {
    if (context.cached) outputs.push_back(builder.graph().find(prefix + cache));
  }
  return builder.finish(std::move(outputs));
}

Graph embedding_graph(const Context& context) {
  Builder builder("embedding", embedding_table(context.config));
  const bool learned = context.config.positions == PositionKind::learned;
  const bool random = context.dropout() > 0;
  ValueId x = builder.embedding(learned || random ? "token_vectors" : "residual_out",
                                builder.parameter("embedding.token.weight"),
                                batch_input(builder, context, "token_ids"), Role::residual);
  if (learned) {
    const ValueId positions =
        builder.embedding("position_vectors", builder.parameter("embedding.position.weight"),
                          batch_input(builder, context, "positions"), Role::residual);
    x = builder.binary(OperationKind::add, random ? "embedded" : "residual_out", x, positions,
                       Role::residual);
  }
  if (random) x = dropout(builder, context, "residual_out", "embedding.dropout", x, Role::residual);
  return builder.finish({x});
}

// Logits of what follows the last token of each sample.
Graph next_token_graph(const Context& context) {
  const ModelConfig& config = context.config;
  Builder builder("next_token", head_table(config));
  if (config.tied_head) builder.add_table(embedding_table(config));
  ValueId x = builder.input("residual_in", context.residual_shape(), DType::fp32, Role::residual);
  if (context.tokens != 1) {
    const ValueId last = builder.make("residual_last", {context.samples, 1, config.width}, Role::residual);
    builder.graph().add_operation(OperationKind::last_token, {x, batch_input(builder, context, "lengths")},
                                  {last});
    x = last;
  }
  const ValueId normed = norm(builder, context, "final_norm", x);
  const ValueId weight = builder.parameter(config.tied_head ? "embedding.token.weight" : "head.weight");
  const bool capped = config.logit_soft_cap > 0;
  ValueId logits = builder.matmul(capped ? "logits_uncapped" : "logits", normed, weight, no_value);
  builder.graph().value(logits).role = Role::statistic;  // wide, as those the loss is computed from
  if (capped) {
    Attributes attributes;
    attributes.soft_cap = config.logit_soft_cap;
    const ValueId uncapped = logits;
    logits = builder.make("logits", builder.graph().value(uncapped).shape, Role::statistic);
    builder.graph().add_operation(OperationKind::soft_cap, {uncapped}, {logits}, attributes);
  }
  return builder.finish({logits});
}

Graph head_graph(const Context& context) {
  const ModelConfig& config = context.config;
  Builder builder("head", head_table(config));
  if (config.tied_head) builder.add_table(embedding_table(config));
  const ValueId x = builder.input("residual_in", context.residual_shape(), DType::fp32, Role::residual);
  const ValueId normed = norm(builder, context, "final_norm", x);
  const ValueId weight = builder.parameter(config.tied_head ? "embedding.token.weight" : "head.weight");
  const ValueId logits = builder.matmul("logits", normed, weight, no_value);
  const ValueId token_loss = builder.make("token_loss", context.token_shape(), Role::statistic);
  const ValueId loss = builder.make("loss", {1}, Role::scalar, DType::fp64);
  Attributes attributes;
  attributes.soft_cap = config.logit_soft_cap;
  attributes.label_smoothing = context.training ? config.label_smoothing : 0;
  attributes.z_loss = context.training ? config.z_loss : 0;
  builder.graph().add_operation(OperationKind::cross_entropy,
                                {logits, batch_input(builder, context, "labels"), no_value},
                                {token_loss, no_value}, attributes);
  builder.graph().add_operation(OperationKind::sum, {token_loss}, {loss});
  return builder.finish({loss});
}

}  // namespace

int64_t cache_slots(const CacheShape& cache, int64_t window) {
  return window == 0 ? cache.capacity : std::min(cache.capacity, window + cache.longest_part - 1);
}

Model build_model(const ModelConfig& config, const ModelShape& shape) {
  validate(config);
  const bool cached = shape.purpose == ModelPurpose::generate;
  const int64_t longest = cached ? shape.cache.capacity : shape.tokens - shape.filled_up;
  if (config.positions == PositionKind::learned && longest > config.maximum_positions) {
    throw_user_error(fmt::format("a sequence of {} tokens is longer than model.maximum_positions {}", longest,
                                 config.maximum_positions),
                     "shorten data.sequence_length or give the model more positions");
  }
  ATHANOR_ASSERT(!cached || (shape.tokens <= shape.cache.longest_part && shape.cache.longest_part <= longest),
                 "parts of {} tokens, {} at most, in a cache of {}", shape.tokens, shape.cache.longest_part,
                 longest);
  Model model{.config = config,
              .embedding = {},
              .blocks = {},
              .block_kind = {},
              .head = {},
              .bucket_kinds = {embedding_table(config), block_table(config), head_table(config)}};
  const Context context{config, shape.samples, shape.tokens, shape.purpose == ModelPurpose::train,
                        cached, shape.cache};
  model.embedding = embedding_graph(context);
  std::vector<int64_t> windows;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t window = config.window_of(layer);
    const auto known = std::find(windows.begin(), windows.end(), window);
    model.block_kind.push_back(static_cast<int32_t>(known - windows.begin()));
    if (known != windows.end()) continue;
    const bool several = !config.window_pattern.empty();
    const std::string name = !several      ? "block"
                             : window == 0 ? "block_full"
                                           : fmt::format("block_window_{}", window);
    windows.push_back(window);
    model.blocks.push_back(block_graph(context, window, name));
  }
  model.head = cached ? next_token_graph(context) : head_graph(context);
  return model;
}

std::vector<BucketTable> bucket_tables(const ModelConfig& config) {
  std::vector<BucketTable> tables{embedding_table(config)};
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    BucketTable table = block_table(config);
    table.name = fill_layer(table.name, layer);
    for (BucketMember& member : table.members) member.name = fill_layer(member.name, layer);
    tables.push_back(std::move(table));
  }
  tables.push_back(head_table(config));
  return tables;
}

ParameterCount parameter_count(const ModelConfig& config) {
  ParameterCount count;
  const BucketTable embedding = embedding_table(config);
  count.total =
      embedding.length() + config.layers * block_table(config).length() + head_table(config).length();
  for (const BucketMember& member : embedding.members) {
    if (member.name == "embedding.position.weight") count.position = member.length();
    if (member.name == "embedding.token.weight" && !config.tied_head)
      count.untied_input_embedding = member.length();
  }
  return count;
}

double literature_flops_per_token(const ModelConfig& config, int64_t sequence_length) {
  const auto width = static_cast<double>(config.heads * config.head_dim_or_default());
  return 6.0 * static_cast<double>(parameter_count(config).counted()) +
         12.0 * static_cast<double>(config.layers) * width * static_cast<double>(sequence_length);
}

}  // namespace athanor
