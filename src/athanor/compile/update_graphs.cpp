// The operations of a step that belong to no segment of the model: batch, counting, norms, optimizer.

#include "athanor/base/error.h"
#include "athanor/compile/assemble.h"

namespace athanor {

namespace {

ValueId make(Graph& graph, const std::string& name, DType dtype, Shape shape, Role role) {
  return graph.add_value({.name = name, .dtype = dtype, .shape = shape, .placements = {}, .role = role});
}

ValueId scalar(Graph& graph, const std::string& name, int64_t length = 1) {
  return make(graph, name, DType::fp64, {length}, Role::scalar);
}

// Makes an operation of these operands the whole graph.
Graph single(Graph graph, OperationKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
             Attributes attributes, Part part) {
  for (const ValueId id : inputs) {
    if (id != no_value) graph.inputs.push_back(id);
  }
  for (const ValueId id : outputs) {
    if (id == no_value) continue;
    graph.outputs.push_back(id);
    if (row_of(kind).updates_outputs) graph.inputs.push_back(id);
  }
  graph.add_operation(kind, std::move(inputs), std::move(outputs), std::move(attributes), part);
  return graph;
}

// "block.{layer}" -> "block"
std::string stem(const BucketTable& table) {
  return table.name.substr(0, table.name.find('.'));
}

Attributes update_attributes(OperationKind kind, const OptimizerOptions& options) {
  Attributes attributes;
  attributes.table = 0;
  if (kind == OperationKind::sgd) {
    attributes.momentum = options.momentum;
    attributes.nesterov = options.nesterov;
  } else {
    attributes.beta1 = options.beta1;
    attributes.beta2 = options.beta2;
    attributes.epsilon = options.epsilon;
  }
  if (kind == OperationKind::lamb) {
    attributes.trust_low = options.trust_low;
    attributes.trust_high = options.trust_high;
  }
  if (kind != OperationKind::lamb_norms) attributes.average_decay = options.average_decay;
  return attributes;
}

}  // namespace

Graph load_graph(int64_t micro_batch, int64_t sequence_length) {
  Graph graph;
  graph.name = "load";
  std::vector<ValueId> outputs;
  for (const char* name : {"token_ids", "labels", "positions", "documents", "indices"}) {
    outputs.push_back(make(graph, name, DType::int32, {micro_batch, sequence_length}, Role::batch));
  }
  outputs.push_back(make(graph, "sample_ids", DType::int64, {micro_batch}, Role::batch));
  return single(std::move(graph), OperationKind::load_batch, {}, outputs, {}, Part::forward);
}

Graph load_tokens_graph(int64_t samples, int64_t tokens) {
  Graph graph;
  graph.name = "load";
  std::vector<ValueId> outputs;
  for (const char* name : {"token_ids", "positions"})
    outputs.push_back(make(graph, name, DType::int32, {samples, tokens}, Role::batch));
  for (const char* name : {"lengths", "cache_rows"})
    outputs.push_back(make(graph, name, DType::int32, {samples}, Role::batch));
  return single(std::move(graph), OperationKind::load_tokens, {}, outputs, {}, Part::forward);
}

Graph count_valid_graph(int64_t micro_batch, int64_t sequence_length) {
  Graph graph;
  graph.name = "count_valid";
  const ValueId labels = make(graph, "labels", DType::int32, {micro_batch, sequence_length}, Role::batch);
  const ValueId valid = scalar(graph, "valid_tokens");
  return single(std::move(graph), OperationKind::count_valid, {labels}, {valid}, {}, Part::forward);
}

Graph squared_norms_graph(const BucketTable& table, const PrecisionPolicy& policy) {
  Graph graph;
  graph.name = "squared_norms." + stem(table);
  graph.tables.push_back(table);
  const ValueId gradient =
      make(graph, "gradients." + table.name, policy.wide, {table.length()}, Role::bucket_gradient);
  const ValueId norms = scalar(graph, "norms", static_cast<int64_t>(table.members.size()));
  Attributes attributes;
  attributes.table = 0;
  return single(std::move(graph), OperationKind::squared_norms, {gradient}, {norms}, attributes,
                Part::update);
}

Graph clip_graph(int64_t members, const OptimizerOptions& options) {
  Graph graph;
  graph.name = "clip";
  const ValueId norms = scalar(graph, "norms", members), valid = scalar(graph, "valid_tokens");
  const ValueId loss = scalar(graph, "loss");
  const ValueId norm = scalar(graph, "gradient_norm"), factor = scalar(graph, "clip_factor");
  const ValueId skip = scalar(graph, "skip");
  Attributes attributes;
  attributes.maximum_norm = options.maximum_norm;
  return single(std::move(graph), OperationKind::clip, {norms, valid, loss}, {norm, factor, skip}, attributes,
                Part::update);
}

Graph lamb_norms_graph(const BucketTable& table, const OptimizerOptions& options,
                       const PrecisionPolicy& policy) {
  Graph graph;
  graph.name = "lamb_norms." + stem(table);
  graph.tables.push_back(table);
  const Shape shape{table.length()};
  const ValueId gradient = make(graph, "gradients." + table.name, policy.wide, shape, Role::bucket_gradient);
  const ValueId factor = scalar(graph, "clip_factor"), skip = scalar(graph, "skip");
  const ValueId master = make(graph, "master." + table.name, policy.wide, shape, Role::master);
  const ValueId first = make(graph, "first_moment." + table.name, policy.wide, shape, Role::optimizer_state);
  const ValueId second =
      make(graph, "second_moment." + table.name, policy.wide, shape, Role::optimizer_state);
  const ValueId norms = scalar(graph, "update_norms", 2 * static_cast<int64_t>(table.members.size()));
  return single(std::move(graph), OperationKind::lamb_norms, {gradient, factor, skip, master, first, second},
                {norms}, update_attributes(OperationKind::lamb_norms, options), Part::update);
}

Graph optimizer_graph(const BucketTable& table, const OptimizerOptions& options,
                      const PrecisionPolicy& policy) {
  Graph graph;
  graph.name = "optimizer." + stem(table);
  graph.tables.push_back(table);
  const Shape shape{table.length()};
  const auto state = [&](const char* name) {
    return make(graph, std::string(name) + "." + table.name, policy.wide, shape, Role::optimizer_state);
  };
  const ValueId gradient = make(graph, "gradients." + table.name, policy.wide, shape, Role::bucket_gradient);
  const ValueId factor = scalar(graph, "clip_factor"), skip = scalar(graph, "skip");
  std::vector<ValueId> inputs{gradient, factor, skip};
  if (options.kind == OptimizerKind::lamb) {
    inputs.push_back(scalar(graph, "update_norms", 2 * static_cast<int64_t>(table.members.size())));
  }
  std::vector<ValueId> outputs{make(graph, "master." + table.name, policy.wide, shape, Role::master)};
  if (options.kind == OptimizerKind::sgd) {
    outputs.push_back(state("momentum"));
  } else {
    outputs.push_back(state("first_moment"));
    outputs.push_back(state("second_moment"));
  }
  outputs.push_back(policy.compute == policy.wide
                        ? no_value
                        : make(graph, "working." + table.name, policy.compute, shape, Role::working));
  outputs.push_back(options.average_decay > 0 ? state("average") : no_value);
  const OperationKind kind = options.kind == OptimizerKind::adamw ? OperationKind::adamw
                             : options.kind == OptimizerKind::sgd ? OperationKind::sgd
                                                                  : OperationKind::lamb;
  return single(std::move(graph), kind, std::move(inputs), std::move(outputs),
                update_attributes(kind, options), Part::update);
}

}  // namespace athanor
