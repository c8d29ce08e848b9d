#include <algorithm>
#include <optional>

#include "athanor/compile/passes.h"

namespace athanor {

namespace {

struct Place {
  size_t table = 0, member = 0;
};

std::optional<Place> place_of(const Graph& graph, ValueId parameter) {
  if (parameter == no_value) return std::nullopt;
  for (size_t t = 0; t < graph.tables.size(); ++t) {
    const auto& members = graph.tables[t].members;
    for (size_t m = 0; m < members.size(); ++m) {
      if (members[m].name == graph.value(parameter).name) return Place{t, m};
    }
  }
  return std::nullopt;
}

bool follows(const Graph& graph, ValueId first, ValueId second) {
  if (first == no_value || second == no_value) return first == second;
  const auto a = place_of(graph, first), b = place_of(graph, second);
  if (!a || !b || a->table != b->table) return false;
  const auto& members = graph.tables[a->table].members;
  return members[a->member].offset + members[a->member].length() == members[b->member].offset;
}

std::string joined(const Graph& graph, const std::vector<ValueId>& values) {
  std::string name;
  for (const ValueId id : values) name += (name.empty() ? "" : "+") + graph.value(id).name;
  return name;
}

// One parameter value that covers neighbours in a bucket: its name lists them, "a+b+c".
ValueId merged_parameter(Graph& graph, const std::vector<ValueId>& parts) {
  if (parts.front() == no_value) return no_value;
  Value value = graph.value(parts.front());
  value.name = joined(graph, parts);
  int64_t rows = 0;
  for (const ValueId part : parts) rows += graph.value(part).shape[0];
  value.shape.set(0, rows);
  const ValueId id = graph.add_value(value);
  graph.inputs.push_back(id);
  return id;
}

}  // namespace

Segment merge_products(Segment segment) {
  Graph& graph = segment.graph;
  const std::vector<Operation> operations = std::move(graph.operations);
  graph.operations.clear();
  std::vector<bool> done(operations.size(), false);
  for (size_t i = 0; i < operations.size(); ++i) {
    if (done[i]) continue;
    std::vector<size_t> group{i};
    if (operations[i].kind == OperationKind::matmul) {
      for (size_t j = i + 1; j < operations.size(); ++j) {
        const Operation& last = operations[group.back()];
        const Operation& next = operations[j];
        if (next.kind == OperationKind::matmul && next.inputs[0] == last.inputs[0] &&
            follows(graph, last.inputs[1], next.inputs[1]) &&
            follows(graph, last.inputs[2], next.inputs[2])) {
          group.push_back(j);
        }
      }
    }
    if (group.size() == 1) {
      graph.operations.push_back(operations[i]);
      continue;
    }
    std::vector<ValueId> weights, biases, products;
    for (const size_t j : group) {
      done[j] = true;
      weights.push_back(operations[j].inputs[1]);
      biases.push_back(operations[j].inputs[2]);
      products.push_back(operations[j].outputs[0]);
    }
    const ValueId weight = merged_parameter(graph, weights), bias = merged_parameter(graph, biases);
    Value product = graph.value(products.front());
    product.name = joined(graph, products);
    product.shape.set(-1, graph.value(weight).shape[0]);
    const ValueId merged = graph.add_value(product);
    graph.add_operation(OperationKind::matmul, {operations[i].inputs[0], weight, bias}, {merged, no_value},
                        operations[i].attributes);
    int64_t offset = 0;
    for (const ValueId part : products) {
      Attributes attributes;
      attributes.offset = offset;
      graph.add_operation(OperationKind::slice, {merged}, {part}, attributes);
      offset += graph.value(part).shape[-1];
    }
  }
  segment.forward_count = static_cast<int64_t>(graph.operations.size());
  return remove_unused(std::move(segment));
}

}  // namespace athanor
