#include <algorithm>
#include <map>
#include <set>

#include "athanor/base/error.h"
#include "athanor/compile/passes.h"

namespace athanor {

namespace {

// The logits of a chunk stay near this size: large enough that reading and writing the weight gradient once
// per chunk costs little, small against the other activations.
constexpr int64_t chunk_target_bytes = int64_t{192} << 20;
constexpr int64_t chunk_granule = 64;

int64_t choose_chunk(int64_t tokens, int64_t row_bytes) {
  const int64_t most =
      std::max(chunk_granule, chunk_target_bytes / row_bytes / chunk_granule * chunk_granule);
  const int64_t least_iterations = (tokens + most - 1) / most;
  for (int64_t n = least_iterations; n <= 2 * least_iterations; ++n) {  // equal chunks where that is near
    if (tokens % n == 0) return tokens / n;
  }
  return std::min(most, tokens);
}

class HeadChunker {
 public:
  HeadChunker(Segment segment, int64_t chunk_tokens) : segment_(std::move(segment)), wanted_(chunk_tokens) {}

  Segment run() {
    const auto& operations = graph().operations;
    const auto loss = std::find_if(operations.begin(), operations.end(), [](const Operation& operation) {
      return operation.kind == OperationKind::cross_entropy ||
             operation.kind == OperationKind::vocabulary_loss;
    });
    if (loss == operations.end()) return std::move(segment_);
    collect_body(static_cast<size_t>(loss - operations.begin()));
    rewrite();
    return std::move(segment_);
  }

 private:
  Graph& graph() { return segment_.graph; }

  // The product that makes the logits, the loss with what it needs of them, and the operations that read the
  // gradient of the logits.
  void collect_body(size_t loss) {
    const ValueId logits = graph().operations[loss].inputs[0];
    const ValueId dlogits = graph().operations[loss].outputs[1];
    std::set<ValueId> needs(graph().operations[loss].inputs.begin(), graph().operations[loss].inputs.end());
    std::set<size_t> before;  // between the logits and the loss
    for (size_t i = loss; i-- > 0;) {
      const Operation& operation = graph().operations[i];
      if (!needs.contains(operation.outputs[0])) continue;
      before.insert(i);
      if (operation.outputs[0] == logits) break;
      needs.insert(operation.inputs.begin(), operation.inputs.end());
    }
    for (size_t i = 0; i < graph().operations.size(); ++i) {
      const Operation& operation = graph().operations[i];
      const bool reads = dlogits != no_value && std::find(operation.inputs.begin(), operation.inputs.end(),
                                                          dlogits) != operation.inputs.end();
      if (before.contains(i) || reads || i == loss) body_.push_back(i);
    }
    const Shape shape = graph().value(logits).shape;
    const auto row_bytes = shape[-1] * static_cast<int64_t>(size_of(graph().value(logits).dtype));
    Region region;
    region.name = "head";
    region.rows = shape.tokens();
    region.chunk_rows = std::min(region.rows, wanted_ > 0 ? wanted_ : choose_chunk(region.rows, row_bytes));
    graph().regions.push_back(region);
  }

  bool has_token_dims(ValueId id) const {
    const Value& value = segment_.graph.value(id);
    return value.shape.rank() >= 2 && value.role != Role::parameter && value.role != Role::parameter_gradient;
  }

  // The value that stands for `id` inside the region, with a view operation that connects the two.
  ValueId inside(ValueId id, std::vector<Operation>& views, OperationKind kind) {
    if (id == no_value || !has_token_dims(id)) return id;
    if (const auto known = inside_.find(id); known != inside_.end()) return known->second;
    Value value = graph().value(id);
    value.name += ".chunk";
    value.shape.set(0, 1);
    value.shape.set(1, graph().regions.back().chunk_rows);
    const ValueId chunk = graph().add_value(std::move(value));
    inside_[id] = chunk;
    if (kind != OperationKind::add) views.push_back(view(kind, id, chunk));
    return chunk;
  }

  Operation view(OperationKind kind, ValueId whole, ValueId chunk) {
    Operation operation;
    operation.kind = kind;
    operation.attributes.region = static_cast<int64_t>(graph().regions.size()) - 1;
    operation.region = static_cast<int32_t>(operation.attributes.region);
    const bool in = kind == OperationKind::chunk;
    operation.inputs = {in ? whole : chunk};
    operation.outputs = {in ? chunk : whole};
    return operation;
  }

  bool is_body(size_t i) const { return std::find(body_.begin(), body_.end(), i) != body_.end(); }

  bool read_outside(ValueId id) {
    for (size_t i = 0; i < graph().operations.size(); ++i) {
      const auto& inputs = graph().operations[i].inputs;
      if (!is_body(i) && std::find(inputs.begin(), inputs.end(), id) != inputs.end()) return true;
    }
    return std::find(graph().outputs.begin(), graph().outputs.end(), id) != graph().outputs.end();
  }

  void rewrite() {
    std::vector<Operation> chunks, loop, collects;
    for (const size_t i : body_) {
      Operation operation = graph().operations[i];
      operation.region = static_cast<int32_t>(graph().regions.size()) - 1;
      for (ValueId& id : operation.inputs) {
        const bool made_inside = inside_.contains(id);
        id = inside(id, chunks, made_inside ? OperationKind::add : OperationKind::chunk);
      }
      for (ValueId& id : operation.outputs) {
        const bool leaves = id != no_value && read_outside(id);
        id = inside(id, collects, leaves ? OperationKind::collect : OperationKind::add);
      }
      loop.push_back(std::move(operation));
    }
    std::vector<Operation> result;
    int64_t forward = 0;
    for (size_t i = 0; i < graph().operations.size(); ++i) {
      if (i == body_.front()) {
        for (auto* part : {&chunks, &loop, &collects}) {
          std::move(part->begin(), part->end(), std::back_inserter(result));
        }
        forward = static_cast<int64_t>(result.size());
      }
      if (is_body(i)) continue;
      result.push_back(std::move(graph().operations[i]));
      if (static_cast<int64_t>(i) < segment_.forward_count) forward = static_cast<int64_t>(result.size());
    }
    graph().operations = std::move(result);
    segment_.forward_count = forward;
    segment_ = remove_unused(std::move(segment_));
  }

  Segment segment_;
  int64_t wanted_;
  std::vector<size_t> body_;
  std::map<ValueId, ValueId> inside_;
};

}  // namespace

Segment chunk_head(Segment segment, int64_t chunk_tokens) {
  return HeadChunker(std::move(segment), chunk_tokens).run();
}

}  // namespace athanor
