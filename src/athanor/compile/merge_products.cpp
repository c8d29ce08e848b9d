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

// One value that covers neighbours in a bucket: its name lists them, "a+b+c".
ValueId merged_member(Graph& graph, const std::vector<ValueId>& parts, const std::string& name) {
  if (parts.front() == no_value) return no_value;
  Value value = graph.value(parts.front());
  value.name = name;
  int64_t rows = 0;
  for (const ValueId part : parts) rows += graph.value(part).shape[0];
  value.shape.set(0, rows);
  return graph.add_value(std::move(value));
}

// One value that holds others side by side in each token's row.
ValueId merged_rows(Graph& graph, const std::vector<ValueId>& parts, const std::string& name) {
  Value value = graph.value(parts.front());
  value.name = name;
  int64_t width = 0;
  for (const ValueId part : parts) width += graph.value(part).shape[-1];
  value.shape.set(-1, width);
  return graph.add_value(std::move(value));
}

// Products that become one, in the order of their weights.
struct Group {
  std::vector<size_t> operations;
  std::vector<ValueId> weights, biases, products;
  ValueId weight = no_value, bias = no_value, product = no_value;  // merged
};

class Merger {
 public:
  explicit Merger(Segment segment) : segment_(std::move(segment)) {}

  Segment run() {
    const std::vector<Operation> operations = std::move(graph().operations);
    graph().operations.clear();
    const auto forward = static_cast<size_t>(segment_.forward_count);
    merge_forward({operations.begin(), operations.begin() + segment_.forward_count});
    segment_.forward_count = static_cast<int64_t>(graph().operations.size());
    backward_ = {operations.begin() + static_cast<int64_t>(forward), operations.end()};
    for (const Group& group : groups_) merge_backward(group);
    for (Operation& operation : backward_) {
      if (!operation.outputs.empty()) graph().operations.push_back(std::move(operation));
    }
    return remove_unused(std::move(segment_));
  }

 private:
  Graph& graph() { return segment_.graph; }

  void merge_forward(const std::vector<Operation>& operations) {
    std::vector<bool> done(operations.size(), false);
    for (size_t i = 0; i < operations.size(); ++i) {
      if (done[i]) continue;
      Group group{.operations = {i}, .weights = {}, .biases = {}, .products = {}};
      if (operations[i].kind == OperationKind::matmul) {
        for (size_t j = i + 1; j < operations.size(); ++j) {
          const Operation& last = operations[group.operations.back()];
          const Operation& next = operations[j];
          if (next.kind == OperationKind::matmul && next.inputs[0] == last.inputs[0] &&
              next.attributes == last.attributes && follows(graph(), last.inputs[1], next.inputs[1]) &&
              follows(graph(), last.inputs[2], next.inputs[2])) {
            group.operations.push_back(j);
          }
        }
      }
      if (group.operations.size() == 1) {
        graph().operations.push_back(operations[i]);
        continue;
      }
      for (const size_t j : group.operations) {
        done[j] = true;
        group.weights.push_back(operations[j].inputs[1]);
        group.biases.push_back(operations[j].inputs[2]);
        group.products.push_back(operations[j].outputs[0]);
      }
      append_merged(operations[i], group);
      groups_.push_back(std::move(group));
    }
  }

  void append_merged(const Operation& first, Group& group) {
    group.weight = merged_member(graph(), group.weights, joined(graph(), group.weights));
    group.bias = merged_member(graph(), group.biases,
                               group.biases.front() == no_value ? "" : joined(graph(), group.biases));
    for (const ValueId id : {group.weight, group.bias}) {
      if (id != no_value) graph().inputs.push_back(id);
    }
    group.product = merged_rows(graph(), group.products, joined(graph(), group.products));
    graph().add_operation(OperationKind::matmul, {first.inputs[0], group.weight, group.bias},
                          {group.product, no_value}, first.attributes);
    int64_t offset = 0;
    for (const ValueId part : group.products) {
      Attributes attributes;
      attributes.offset = offset;
      graph().add_operation(OperationKind::slice, {group.product}, {part}, attributes);
      offset += graph().value(part).shape[-1];
    }
  }

  // Positions in backward_ of the gradients of each product of a group; nothing where there is none.
  struct Gradients {
    std::vector<size_t> input, weight, bias;
  };

  std::optional<size_t> writer_of_gradient(ValueId parameter) {
    const std::string name = "d." + graph().value(parameter).name;
    for (size_t i = 0; i < backward_.size(); ++i) {
      if (backward_[i].outputs.empty() || backward_[i].outputs[0] == no_value) continue;
      if (graph().value(backward_[i].outputs[0]).name == name) return i;
    }
    return std::nullopt;
  }

  std::optional<Gradients> find_gradients(const Group& group) {
    Gradients found;
    for (size_t p = 0; p < group.weights.size(); ++p) {
      const auto weight = writer_of_gradient(group.weights[p]);
      if (!weight || backward_[*weight].kind != OperationKind::matmul_weight_gradient) return std::nullopt;
      found.weight.push_back(*weight);
      if (group.bias != no_value) {
        const auto bias = writer_of_gradient(group.biases[p]);
        if (!bias) return std::nullopt;
        found.bias.push_back(*bias);
      }
      const auto input = std::find_if(backward_.begin(), backward_.end(), [&](const Operation& operation) {
        return operation.kind == OperationKind::matmul_input_gradient && !operation.outputs.empty() &&
               operation.inputs[1] == group.weights[p];
      });
      if (input == backward_.end()) return std::nullopt;
      found.input.push_back(static_cast<size_t>(input - backward_.begin()));
    }
    return found;
  }

  int64_t readers(ValueId id) {
    int64_t count = std::count(graph().outputs.begin(), graph().outputs.end(), id);
    for (const Operation& operation : backward_) {
      count += std::count(operation.inputs.begin(), operation.inputs.end(), id);
    }
    return count;
  }

  // Backward runs from the last product to the first: each adds its input gradient to the one before. True
  // when nothing else happens in between, so that one product may do it.
  bool is_one_chain(const Group& group, const Gradients& found) {
    for (size_t p = 0; p < group.weights.size(); ++p) {
      const Operation &input = backward_[found.input[p]], &weight = backward_[found.weight[p]];
      if (input.inputs[0] != weight.inputs[0] || weight.inputs[1] != backward_[found.weight[0]].inputs[1])
        return false;
      if (group.bias != no_value && backward_[found.bias[p]].inputs[0] != weight.inputs[0]) return false;
      if (p == 0) continue;
      const ValueId total = input.outputs[0];
      if (backward_[found.input[p - 1]].inputs[2] != total || readers(total) != 1) return false;
      if (found.input[p] > found.input[p - 1]) return false;
    }
    return true;
  }

  void merge_backward(const Group& group) {
    const auto found = find_gradients(group);
    if (!found || !is_one_chain(group, *found)) return;
    const Operation first = backward_[found->input.front()], last = backward_[found->input.back()];
    const ValueId x = backward_[found->weight.front()].inputs[1];
    std::vector<ValueId> gradients;
    for (const size_t i : found->weight) gradients.push_back(backward_[i].inputs[0]);
    std::vector<Operation> merged;
    const auto append = [&](OperationKind kind, std::vector<ValueId> inputs, ValueId output, Part part) {
      Operation operation;
      operation.kind = kind;
      operation.part = part;
      operation.inputs = std::move(inputs);
      operation.outputs = {output};
      merged.push_back(std::move(operation));
    };
    const ValueId dy = merged_rows(graph(), gradients, "d." + joined(graph(), group.products));
    append(OperationKind::concat, gradients, dy, Part::input_gradient);
    // The total has the name of the chain's first value.
    std::swap(graph().value(first.outputs[0]).name, graph().value(last.outputs[0]).name);
    append(OperationKind::matmul_input_gradient, {dy, group.weight, last.inputs[2]}, first.outputs[0],
           Part::input_gradient);
    append(OperationKind::matmul_weight_gradient, {dy, x},
           merged_gradient(found->weight, "d." + graph().value(group.weight).name), Part::weight_gradient);
    if (group.bias != no_value) {
      append(OperationKind::bias_gradient, {dy},
             merged_gradient(found->bias, "d." + graph().value(group.bias).name), Part::weight_gradient);
    }
    // Where the first product's gradients stand, all others are known.
    size_t at = std::min(found->input.front(), found->weight.front());
    if (group.bias != no_value) at = std::min(at, found->bias.front());
    for (const auto* list : {&found->input, &found->weight, &found->bias}) {
      for (const size_t i : *list) backward_[i] = {};  // no outputs: left out
    }
    backward_.insert(backward_.begin() + static_cast<int64_t>(at), merged.begin(), merged.end());
  }

  // Stands among the outputs where the first of its parts stood.
  ValueId merged_gradient(const std::vector<size_t>& writers, const std::string& name) {
    std::vector<ValueId> parts;
    for (const size_t i : writers) parts.push_back(backward_[i].outputs[0]);
    const ValueId merged = merged_member(graph(), parts, name);
    auto& outputs = graph().outputs;
    const auto place = std::find_first_of(outputs.begin(), outputs.end(), parts.begin(), parts.end());
    *place = merged;
    std::erase_if(outputs, [&](ValueId id) { return std::count(parts.begin(), parts.end(), id) > 0; });
    return merged;
  }

  Segment segment_;
  std::vector<Operation> backward_;
  std::vector<Group> groups_;
};

}  // namespace

Segment merge_products(Segment segment) {
  return Merger(std::move(segment)).run();
}

}  // namespace athanor
