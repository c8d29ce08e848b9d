#include <algorithm>

#include "athanor/compile/passes.h"

namespace athanor {

Segment remove_unused(Segment segment) {
  Graph& graph = segment.graph;
  std::vector<bool> used(graph.values.size(), false);
  for (const ValueId id : graph.outputs) used[static_cast<size_t>(id)] = true;
  std::vector<bool> keep(graph.operations.size(), false);
  for (size_t i = graph.operations.size(); i-- > 0;) {
    const Operation& operation = graph.operations[i];
    keep[i] = std::any_of(operation.outputs.begin(), operation.outputs.end(),
                          [&](ValueId id) { return id != no_value && used[static_cast<size_t>(id)]; });
    if (!keep[i]) continue;
    for (const ValueId id : operation.inputs) {
      if (id != no_value) used[static_cast<size_t>(id)] = true;
    }
    for (const ValueId id : operation.outputs) {  // an output nobody reads still needs a place
      if (id != no_value) used[static_cast<size_t>(id)] = true;
    }
  }
  std::vector<ValueId> renumbered(graph.values.size(), no_value);
  Graph result;
  result.name = graph.name;
  result.regions = graph.regions;
  result.tables = graph.tables;
  for (size_t v = 0; v < graph.values.size(); ++v) {
    if (used[v]) renumbered[v] = result.add_value(graph.values[v]);
  }
  const auto renumber = [&](std::vector<ValueId>& ids) {
    for (ValueId& id : ids) id = id == no_value ? no_value : renumbered[static_cast<size_t>(id)];
  };
  int64_t forward = 0;
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    if (!keep[i]) continue;
    Operation operation = graph.operations[i];
    renumber(operation.inputs);
    renumber(operation.outputs);
    result.operations.push_back(std::move(operation));
    if (static_cast<int64_t>(i) < segment.forward_count) ++forward;
  }
  result.inputs = graph.inputs;
  result.outputs = graph.outputs;
  renumber(result.inputs);
  renumber(result.outputs);
  std::erase(result.inputs, no_value);
  return {std::move(result), forward};
}

}  // namespace athanor
