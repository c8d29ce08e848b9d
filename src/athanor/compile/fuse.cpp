#include <algorithm>

#include "athanor/compile/passes.h"

namespace athanor {

namespace {

class Fuser {
 public:
  explicit Fuser(Segment segment) : segment_(std::move(segment)), removed_(operations().size(), false) {}

  Segment run() {
    for (size_t i = 0; i < forward(); ++i) {
      switch (operations()[i].kind) {
        case OperationKind::gelu:
          activation_into_product(i);
          break;
        case OperationKind::add:
          add_into_dropout_or_norm(i);
          break;
        default:
          break;
      }
    }
    Graph& graph = segment_.graph;
    std::vector<Operation> kept;
    int64_t forward_kept = 0;
    for (size_t i = 0; i < graph.operations.size(); ++i) {
      if (removed_[i]) continue;
      if (i < forward()) ++forward_kept;
      kept.push_back(std::move(graph.operations[i]));
    }
    graph.operations = std::move(kept);
    segment_.forward_count = forward_kept;
    return remove_unused(std::move(segment_));
  }

 private:
  std::vector<Operation>& operations() { return segment_.graph.operations; }
  size_t forward() const { return static_cast<size_t>(segment_.forward_count); }

  // The forward operation before `end` that writes a value, or -1.
  int64_t producer(ValueId value, size_t end) {
    for (size_t i = end; i-- > 0;) {
      const auto& outputs = operations()[i].outputs;
      if (!removed_[i] && std::find(outputs.begin(), outputs.end(), value) != outputs.end()) {
        return static_cast<int64_t>(i);
      }
    }
    return -1;
  }

  int64_t readers(ValueId value) {
    int64_t count = 0;
    for (size_t i = 0; i < operations().size(); ++i) {
      if (!removed_[i])
        count += std::count(operations()[i].inputs.begin(), operations()[i].inputs.end(), value);
    }
    return count;
  }

  // The product applies the activation to each tile while it is in the cache.
  void activation_into_product(size_t i) {
    const int64_t at = producer(operations()[i].inputs[0], i);
    if (at < 0) return;
    Operation& product = operations()[static_cast<size_t>(at)];
    if (product.kind != OperationKind::matmul || product.outputs[1] != no_value) return;
    product.attributes.activation = Activation::gelu;
    product.outputs[1] = operations()[i].outputs[0];
    removed_[i] = true;
  }

  void add_into_dropout_or_norm(size_t i) {
    const Operation add = operations()[i];
    if (const int64_t at = producer(add.inputs[1], i); at >= 0) {
      Operation& dropout = operations()[static_cast<size_t>(at)];
      if (dropout.kind == OperationKind::dropout && dropout.inputs[3] == no_value &&
          readers(add.inputs[1]) == 1) {
        dropout.inputs[3] = add.inputs[0];
        dropout.outputs[0] = add.outputs[0];
        removed_[i] = true;
        return;
      }
    }
    for (size_t j = i + 1; j < forward(); ++j) {
      Operation& next = operations()[j];
      const bool reads =
          std::find(next.inputs.begin(), next.inputs.end(), add.outputs[0]) != next.inputs.end();
      if (!reads) continue;
      const bool layer = next.kind == OperationKind::layer_norm;
      if ((layer || next.kind == OperationKind::rms_norm) && next.inputs[0] == add.outputs[0]) {
        next.inputs[0] = add.inputs[0];
        next.inputs[layer ? 3 : 2] = add.inputs[1];
        next.outputs[layer ? 3 : 2] = add.outputs[0];
        removed_[i] = true;
      }
      return;  // only when the norm is the sum's first reader
    }
  }

  Segment segment_;
  std::vector<bool> removed_;
};

}  // namespace

Segment fuse(Segment segment) {
  return Fuser(std::move(segment)).run();
}

}  // namespace athanor
