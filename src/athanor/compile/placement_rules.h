// What one axis of the mesh may do to the operands of an operation: the rules by which placements propagate.
//
// A rule is one choice for one axis: the placements that the inputs must have, and those that the outputs
// then have. Axes are chosen for one at a time; an operation's choice on one does not depend on the others.
// Internal to `compile`. Thread safety: pure functions.
#pragma once

#include <optional>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor {

// What the layout says about an axis.
struct AxisContext {
  Axis axis{};
  int32_t ranks = 1;
  Placement token;    // of [B,S,..] values outside of products and attention: replicated, or dim 0 or 1
  bool ring = false;  // attention may see keys of other ranks part by part
  std::optional<Placement> query_heads, key_heads;  // what attention cuts instead of the sequence
};

struct AxisRule {
  std::vector<Placement> inputs, outputs;  // by operand; of absent ones without meaning
};

// An operation as a rule sees it: along one axis.
struct OperandsOnAxis {
  const Graph* graph = nullptr;
  const Operation* operation = nullptr;
  std::vector<Placement> inputs;  // what they are now
  // What the gradients of parameters among the outputs must fit; nothing for other outputs.
  std::vector<std::optional<Placement>> parameters;
};

// The allowed choice that moves the fewest bytes. An operation that no rule fits is a bug.
AxisRule choose_rule(const OperandsOnAxis& operands, const AxisContext& context);

}  // namespace athanor
