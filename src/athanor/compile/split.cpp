#include <set>

#include "athanor/compile/passes.h"

namespace athanor {

namespace {

// A graph of operations [begin, end) of `whole`, with the values they use.
Graph part(const Graph& whole, size_t begin, size_t end, const std::string& name) {
  Graph graph;
  graph.name = name;
  graph.regions = whole.regions;
  graph.tables = whole.tables;
  std::vector<ValueId> renumbered(whole.values.size(), no_value);
  std::set<ValueId> written;
  const auto use = [&](ValueId id, bool writes) {
    if (id == no_value) return no_value;
    ValueId& mine = renumbered[static_cast<size_t>(id)];
    if (mine == no_value) {
      mine = graph.add_value(whole.value(id));
      if (!writes) graph.inputs.push_back(mine);
    }
    return mine;
  };
  for (size_t i = begin; i < end; ++i) {
    Operation operation = whole.operations[i];
    for (ValueId& id : operation.inputs) id = use(id, false);
    for (ValueId& id : operation.outputs) id = use(id, true);
    graph.operations.push_back(std::move(operation));
  }
  return graph;
}

}  // namespace

SplitSegment split(const Segment& segment) {
  const Graph& whole = segment.graph;
  const auto middle = static_cast<size_t>(segment.forward_count);
  SplitSegment result;
  result.forward = part(whole, 0, middle, whole.name + ".forward");
  result.backward = part(whole, middle, whole.operations.size(), whole.name + ".backward");
  std::set<std::string> inputs, outputs;
  for (const ValueId id : whole.inputs) inputs.insert(whole.value(id).name);
  for (const ValueId id : whole.outputs) outputs.insert(whole.value(id).name);
  for (Graph* graph : {&result.forward, &result.backward}) {
    for (size_t v = 0; v < graph->values.size(); ++v) {
      if (outputs.contains(graph->values[v].name)) graph->outputs.push_back(static_cast<ValueId>(v));
    }
  }
  for (const ValueId id : result.backward.inputs) {
    const std::string& name = result.backward.value(id).name;
    if (inputs.contains(name)) continue;  // both parts are given it
    result.saved.push_back(name);
    if (const ValueId mine = result.forward.find(name); !outputs.contains(name))
      result.forward.outputs.push_back(mine);
  }
  return result;
}

}  // namespace athanor
