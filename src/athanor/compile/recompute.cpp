#include <algorithm>
#include <map>
#include <set>

#include "athanor/base/error.h"
#include "athanor/compile/passes.h"

namespace athanor {

namespace {

// Cheap against the memory they hold: element-wise work and norms.
bool is_cheap(const Operation& operation, size_t output) {
  switch (operation.kind) {
    case OperationKind::gelu:
    case OperationKind::swiglu:
    case OperationKind::cast:
      return true;
    case OperationKind::matmul:
      return output == 1;  // the activation, from the kept product
    case OperationKind::layer_norm:
    case OperationKind::rms_norm:
      return output == 0;
    default:
      return false;
  }
}

class Recomputer {
 public:
  Recomputer(Segment segment, Recompute mode) : segment_(std::move(segment)), mode_(mode) {}

  Segment run() {
    Graph& graph = segment_.graph;
    const auto forward = static_cast<size_t>(segment_.forward_count);
    for (size_t i = 0; i < forward; ++i) {
      const Operation& operation = graph.operations[i];
      for (size_t o = 0; o < operation.outputs.size(); ++o) {
        if (operation.outputs[o] != no_value) producer_[operation.outputs[o]] = {i, o};
      }
    }
    const std::vector<Operation> operations = std::move(graph.operations);
    result_.assign(operations.begin(), operations.begin() + static_cast<int64_t>(forward));
    forward_ = result_;
    for (size_t i = forward; i < operations.size(); ++i) {
      Operation operation = operations[i];
      for (ValueId& id : operation.inputs) id = available(id);
      result_.push_back(std::move(operation));
    }
    graph.operations = std::move(result_);
    return remove_unused(std::move(segment_));
  }

 private:
  struct Origin {
    size_t operation = 0, output = 0;
  };

  // The value backward reads in place of forward's `id`: itself when kept, else one computed again.
  ValueId available(ValueId id) {
    const auto origin = producer_.find(id);
    if (id == no_value || origin == producer_.end()) return id;
    if (const auto known = again_.find(id); known != again_.end()) return known->second;
    const Operation& operation = forward_[origin->second.operation];
    if (mode_ == Recompute::full) return repeat(operation, id);
    if (!is_cheap(operation, origin->second.output)) return id;
    return repeat_cheap(operation, origin->second.output, id);
  }

  ValueId copy_of(ValueId id) {
    if (id == no_value) return no_value;
    Value value = segment_.graph.value(id);
    value.name = "again." + value.name;
    const ValueId copy = segment_.graph.add_value(std::move(value));
    again_[id] = copy;
    return copy;
  }

  ValueId repeat(const Operation& original, ValueId id) {
    Operation operation = original;
    for (ValueId& input : operation.inputs) input = available(input);
    for (ValueId& output : operation.outputs) output = copy_of(output);
    operation.part = Part::input_gradient;
    result_.push_back(std::move(operation));
    return again_.at(id);
  }

  ValueId repeat_cheap(const Operation& original, size_t output, ValueId id) {
    Operation operation = original;
    operation.part = Part::input_gradient;
    if (original.kind == OperationKind::matmul) {  // only the activation, of the product as stored
      operation = {};
      operation.kind = OperationKind::gelu;
      operation.part = Part::input_gradient;
      operation.inputs = {original.outputs[0]};
      operation.outputs = {copy_of(id)};
    } else {
      const bool layer = original.kind == OperationKind::layer_norm;
      if (layer || original.kind == OperationKind::rms_norm) {
        const size_t addend = layer ? 3 : 2, total = layer ? 3 : 2;
        if (original.outputs[total] != no_value) {  // the norm of the kept sum
          operation.inputs[0] = original.outputs[total];
          operation.inputs[addend] = no_value;
          operation.outputs[total] = no_value;
        }
      }
      for (ValueId& input : operation.inputs) input = available(input);
      for (size_t o = 0; o < operation.outputs.size(); ++o) {
        if (o == output) {
          operation.outputs[o] = copy_of(operation.outputs[o]);
        } else if (operation.outputs[o] != no_value) {  // statistics were kept; this copy is not read
          Value value = segment_.graph.value(operation.outputs[o]);
          value.name = "unread." + value.name;
          operation.outputs[o] = segment_.graph.add_value(std::move(value));
        }
      }
    }
    result_.push_back(std::move(operation));
    return again_.at(id);
  }

  Segment segment_;
  Recompute mode_;
  std::map<ValueId, Origin> producer_;
  std::map<ValueId, ValueId> again_;
  std::vector<Operation> result_, forward_;
};

}  // namespace

Segment recompute(Segment segment, Recompute mode) {
  if (mode == Recompute::none) return segment;
  return Recomputer(std::move(segment), mode).run();
}

}  // namespace athanor
