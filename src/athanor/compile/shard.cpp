#include "athanor/compile/shard.h"

#include <algorithm>
#include <map>
#include <optional>

#include "athanor/base/error.h"
#include "athanor/compile/lower_sharded.h"
#include "athanor/compile/placement_rules.h"

namespace athanor {

namespace {

bool cuts(const Placement& placement, int dim) {
  return placement.kind == PlacementKind::shard && placement.dim == dim;
}

class Sharder {
 public:
  Sharder(const Segment& segment, const Layout& layout)
      : segment_(segment), layout_(layout), sharded_(segment_.graph, layout.mesh()) {
    for (int axis = 0; axis < axis_count; ++axis) {
      if (layout.mesh().size(static_cast<Axis>(axis)) > 1) axes_.push_back(static_cast<Axis>(axis));
    }
    // Heads are first cut over `tensor`; what attention cuts over `context` is what that leaves.
    std::ranges::reverse(axes_);
  }

  Segment run() {
    for (const BucketTable& table : global().tables) {
      sharded_.graph().tables.push_back(local_table(table, layout_));
    }
    for (const ValueId id : global().inputs) {
      sharded_.graph().inputs.push_back(sharded_.define(id, boundary(id)));
    }
    int64_t forward = 0;
    for (size_t i = 0; i < global().operations.size(); ++i) {
      if (static_cast<int64_t>(i) == segment_.forward_count) {
        place_outputs(false);
        forward = count();
        if (!has_loss()) sharded_.forget_gathered();  // a head's two parts become one loop over tokens
      }
      visit(global().operations[i]);
    }
    place_outputs(false);
    if (segment_.forward_count == static_cast<int64_t>(global().operations.size())) forward = count();
    place_outputs(true);
    return {std::move(sharded_.graph()), forward};
  }

 private:
  const Graph& global() const { return segment_.graph; }
  bool has_loss() const {
    return std::ranges::any_of(global().operations, [](const Operation& operation) {
      return operation.kind == OperationKind::cross_entropy;
    });
  }
  int64_t count() { return static_cast<int64_t>(sharded_.graph().operations.size()); }

  // What the value is on the segment's border.
  Placements boundary(ValueId id) const {
    const Value& value = global().value(id);
    switch (value.role) {
      case Role::parameter:
        return layout_.of_parameter(value.name);
      case Role::scalar:
        return {};
      case Role::cache:
        return layout_.cache;
      case Role::batch: {
        Placements placements = layout_.batch;
        for (Placement& placement : placements) {
          if (placement.kind == PlacementKind::shard && placement.dim >= value.shape.rank()) placement = {};
        }
        return placements;
      }
      case Role::residual:
      case Role::residual_gradient:
        return layout_.residual;
      default:  // logits
        return layout_.batch;
    }
  }

  // Outputs that are written so far get the placement and the name that they have outside.
  void place_outputs(bool gradients) {
    for (const ValueId id : global().outputs) {
      const Value& value = global().value(id);
      const bool as_it_is =
          value.role == Role::parameter_gradient || value.role == Role::scalar || value.role == Role::cache;
      const bool backward = value.role == Role::parameter_gradient || value.role == Role::residual_gradient;
      if (placed_.contains(id) || !sharded_.defined(id) || (backward && !gradients)) continue;
      const Placements wanted = as_it_is ? sharded_.placements(id) : boundary(id);
      const ValueId before = sharded_.in(id, sharded_.placements(id), Part::forward);
      const ValueId after = sharded_.in(id, wanted, backward ? Part::input_gradient : Part::forward);
      if (after != before) std::swap(sharded_.graph().value(before).name, sharded_.graph().value(after).name);
      placed_[id] = after;
    }
    if (!gradients) return;
    for (const ValueId id : global().outputs) sharded_.graph().outputs.push_back(placed_.at(id));
  }

  AxisContext context_of(const Operation& operation, Axis axis) const {
    AxisContext context{.axis = axis,
                        .ranks = layout_.mesh().size(axis),
                        .token = layout_.residual[static_cast<size_t>(axis)],
                        .query_heads = {},
                        .key_heads = {}};
    if (axis != Axis::context) return context;
    context.ring = layout_.options.context_form == ContextForm::ring;
    const bool forward = operation.kind == OperationKind::attention;
    if (context.ring || (!forward && operation.kind != OperationKind::attention_gradient)) return context;
    const size_t q = forward ? 0 : 1;
    const int64_t heads = local_heads(operation.inputs[q]), groups = local_heads(operation.inputs[q + 1]);
    const HeadCut cut = head_cut(groups, heads / groups, context.ranks);
    context.query_heads = {.kind = PlacementKind::shard, .dim = 2, .unit = cut.query_unit, .inner = true};
    context.key_heads = {.kind = PlacementKind::shard, .dim = 2, .repeat = cut.repeat, .inner = true};
    return context;
  }

  // Heads that axis `tensor` leaves to a rank.
  int64_t local_heads(ValueId id) const {
    const auto axis = static_cast<size_t>(Axis::tensor);
    Placements placements;
    placements[axis] = sharded_.placements(id)[axis];
    if (!cuts(placements[axis], 2)) placements[axis] = {};
    return storage_shape(global().value(id).shape, placements, layout_.mesh())[2];
  }

  // The parameter whose gradient an output is.
  std::optional<Placements> parameter_of(ValueId id) const {
    if (id == no_value || global().value(id).role != Role::parameter_gradient) return std::nullopt;
    return layout_.of_parameter(global().value(id).name.substr(2));  // "d.NAME"
  }

  struct Choice {
    std::vector<Placements> inputs, outputs;  // by operand
  };

  Choice choose(const Operation& operation) const {
    Choice choice{std::vector<Placements>(operation.inputs.size()),
                  std::vector<Placements>(operation.outputs.size())};
    for (const Axis axis : axes_) {
      const auto a = static_cast<size_t>(axis);
      OperandsOnAxis operands{&global(), &operation, {}, {}};
      for (const ValueId id : operation.inputs) {
        operands.inputs.push_back(id == no_value ? Placement{} : sharded_.placements(id)[a]);
      }
      for (const ValueId id : operation.outputs) {
        const auto parameter = parameter_of(id);
        operands.parameters.push_back(parameter ? std::optional((*parameter)[a]) : std::nullopt);
      }
      const AxisRule rule = choose_rule(operands, context_of(operation, axis));
      for (size_t i = 0; i < rule.inputs.size(); ++i) choice.inputs[i][a] = rule.inputs[i];
      for (size_t o = 0; o < rule.outputs.size(); ++o) choice.outputs[o][a] = rule.outputs[o];
    }
    return choice;
  }

  void visit(const Operation& operation) {
    if (operation.kind == OperationKind::matmul_input_gradient && operation.inputs[2] != no_value) {
      return visit_with_addend(operation);
    }
    emit(operation, choose(operation));
  }

  // A product of partial sums can be added only to partial sums; to all else when it has been reduced.
  void visit_with_addend(const Operation& operation) {
    Operation alone = operation;
    alone.inputs[2] = no_value;
    const Choice product = choose(alone);
    const Placements& addend = sharded_.placements(operation.inputs[2]);
    const bool alike = std::ranges::all_of(axes_, [&](Axis axis) {
      const auto a = static_cast<size_t>(axis);
      return (product.outputs[0][a].kind == PlacementKind::partial) ==
             (addend[a].kind == PlacementKind::partial);
    });
    if (alike) return emit(operation, choose(operation));
    const ValueId dx = operation.outputs[0];
    const ValueId apart = spare(dx, ".product");
    alone.outputs[0] = apart;
    emit(alone, product);
    Operation sum;
    sum.kind = OperationKind::add;
    sum.part = operation.part;
    sum.inputs = {operation.inputs[2], apart};
    sum.outputs = {dx};
    emit(sum, choose(sum));
  }

  // A global value that the pass needs besides those of the segment.
  ValueId spare(ValueId like, const std::string& suffix) {
    Value value = global().value(like);
    value.name += suffix;
    return segment_.graph.add_value(std::move(value));
  }

  void emit(const Operation& operation, const Choice& choice) {
    std::vector<ValueId> inputs, outputs;
    for (size_t i = 0; i < operation.inputs.size(); ++i) {
      const ValueId id = operation.inputs[i];
      inputs.push_back(id == no_value ? no_value : sharded_.in(id, choice.inputs[i], operation.part));
    }
    for (size_t o = 0; o < operation.outputs.size(); ++o) {
      const ValueId id = operation.outputs[o];
      outputs.push_back(id == no_value ? no_value : sharded_.define(id, choice.outputs[o]));
    }
    const auto axis_cutting = [&](const Placements& placements, int dim) -> std::optional<Axis> {
      std::optional<Axis> found;
      for (const Axis axis : axes_) {
        if (!cuts(placements[static_cast<size_t>(axis)], dim)) continue;
        ATHANOR_ASSERT(!found, "{} in {}: two axes cut dim {}", name_of(operation.kind), global().name, dim);
        found = axis;
      }
      return found;
    };
    Attributes attributes = operation.attributes;
    const auto length = [&](ValueId id, int dim) { return global().value(id).shape[dim]; };
    switch (operation.kind) {
      case OperationKind::embedding:
        if (axis_cutting(choice.inputs[0], 0)) attributes.extent = length(operation.inputs[0], 0);
        break;
      case OperationKind::embedding_gradient:
        if (axis_cutting(choice.outputs[0], 0)) attributes.extent = length(operation.outputs[0], 0);
        break;
      case OperationKind::matmul:  // matters to the bias alone
        if (operation.inputs[2] != no_value && axis_cutting(choice.inputs[1], 1)) {
          attributes.extent = length(operation.inputs[1], 1);
        }
        break;
      case OperationKind::attention:
      case OperationKind::attention_gradient: {
        const bool forward = operation.kind == OperationKind::attention;
        const size_t q = forward ? 0 : 1;
        const bool heads_cut = std::ranges::any_of(
            axes_, [&](Axis axis) { return cuts(choice.inputs[q][static_cast<size_t>(axis)], 2); });
        if (attributes.probability > 0 && heads_cut) attributes.extent = length(operation.inputs[q], 2);
        const auto axis = axis_cutting(choice.inputs[q], 1);
        if (!axis) break;
        if (forward)
          return lower_ring_attention(sharded_, *axis, inputs, outputs, attributes, operation.part);
        return lower_ring_attention_gradient(sharded_, *axis, inputs, outputs, attributes, operation.part);
      }
      case OperationKind::cross_entropy:
        if (const auto axis = axis_cutting(choice.inputs[0], 2)) {
          return lower_vocabulary_loss(sharded_, *axis, length(operation.inputs[0], 2), inputs, outputs,
                                       attributes, operation.part);
        }
        break;
      default:
        break;
    }
    sharded_.append(operation.kind, std::move(inputs), std::move(outputs), attributes, operation.part);
  }

  Segment segment_;
  const Layout& layout_;
  ShardedGraph sharded_;
  std::vector<Axis> axes_;
  std::map<ValueId, ValueId> placed_;
};

}  // namespace

std::map<std::string, Placements> gradient_placements(const Graph& sharded) {
  std::map<std::string, Placements> placements;
  for (const ValueId id : sharded.outputs) {
    const Value& value = sharded.value(id);
    if (value.role == Role::parameter_gradient) placements[value.name.substr(2)] = value.placements;
  }
  return placements;
}

BucketTable local_table(const BucketTable& table, const Layout& layout) {
  BucketTable local{.name = table.name, .members = {}};
  for (BucketMember member : table.members) {
    member.placements = layout.of_parameter(member.name);
    member.shape = storage_shape(member.shape, member.placements, layout.mesh());
    member.offset = local.length();
    local.members.push_back(std::move(member));
  }
  return local;
}

Segment shard(Segment segment, const Layout& layout) {
  for (const int32_t size : layout.mesh().sizes) {
    if (size > 1) return remove_unused(Sharder(segment, layout).run());
  }
  return segment;
}

}  // namespace athanor
