#include "athanor/compile/sharded_graph.h"

#include <algorithm>

#include "athanor/base/error.h"

namespace athanor {

ShardedGraph::ShardedGraph(const Graph& global, const Mesh& mesh) : global_(global), mesh_(mesh) {
  graph_.name = global.name;
  // Names of what the graph is given and gives stay theirs.
  for (const auto* list : {&global.inputs, &global.outputs}) {
    for (const ValueId id : *list) names_.insert(global.value(id).name);
  }
}

std::string ShardedGraph::unique(const std::string& name) {
  std::string result = name;
  while (!names_.insert(result).second) {
    int& last = last_numbers_.try_emplace(name, 1).first->second;
    result = fmt::format("{}.{}", name, ++last);
  }
  return result;
}

ValueId ShardedGraph::make(const std::string& name, DType dtype, const Shape& shape,
                           const Placements& placements, Role role) {
  return graph_.add_value({.name = unique(name),
                           .dtype = dtype,
                           .shape = storage_shape(shape, placements, mesh_),
                           .placements = placements,
                           .role = role});
}

ValueId ShardedGraph::make_like(ValueId local, const std::string& name, Role role) {
  Value value = graph_.value(local);
  value.name = unique(name);
  value.role = role;
  return graph_.add_value(std::move(value));
}

ValueId ShardedGraph::define(ValueId id, const Placements& placements) {
  return define(id, placements, global_.value(id).name, global_.value(id).role);
}

ValueId ShardedGraph::define(ValueId id, const Placements& placements, const std::string& name, Role role) {
  const Value& value = global_.value(id);
  if (const auto known = homes_.find(id); known != homes_.end()) {  // one more contribution to it
    ATHANOR_ASSERT(known->second.placements == placements, "{} in two placements", value.name);
    return known->second.variants.front().local;
  }
  // A boundary's name is its own; others may have been taken by what was made on the way.
  const bool boundary = std::ranges::count(global_.inputs, id) + std::ranges::count(global_.outputs, id) > 0;
  if (boundary) names_.erase(name);
  const ValueId local = make(name, value.dtype, value.shape, placements, role);
  homes_[id] = {placements, {{placements, local, false}}};
  return local;
}

Operation& ShardedGraph::append(OperationKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                                const Attributes& attributes, Part part) {
  return graph_.add_operation(kind, std::move(inputs), std::move(outputs), attributes, part);
}

void ShardedGraph::forget_gathered() {
  for (auto& [id, home] : homes_) {
    const bool batch = global_.value(id).role == Role::batch;
    std::erase_if(home.variants, [&](const Variant& variant) {
      return variant.gathered || (batch && variant.placements != home.placements);
    });
  }
}

ValueId ShardedGraph::in(ValueId id, const Placements& placements, Part part) {
  Home& home = homes_.at(id);
  const auto find = [&](const Placements& wanted) {
    return std::find_if(home.variants.begin(), home.variants.end(),
                        [&](const Variant& variant) { return variant.placements == wanted; });
  };
  if (const auto known = find(placements); known != home.variants.end()) return known->local;
  // From what it was defined in, axis by axis. Later axes cut what earlier ones left, so they let go first.
  Variant current = home.variants.front();
  for (int axis = axis_count; axis-- > 0;) {
    const Placement& wanted = placements[static_cast<size_t>(axis)];
    if (current.placements[static_cast<size_t>(axis)] == wanted) continue;
    Placements next = current.placements;
    next[static_cast<size_t>(axis)] = wanted;
    if (const auto known = find(next); known != home.variants.end()) {
      current = *known;
      continue;
    }
    current = convert(id, current, static_cast<Axis>(axis), wanted, part);
    home.variants.push_back(current);
  }
  return current.local;
}

namespace {

// Sums over repeats come first, then whole parts change hands.
Placement whole_repeats(Placement placement) {
  placement.repeats_partial = false;
  return placement;
}

// A collective along an axis takes the storage of a dim as the other axes left it.
void expect_innermost(const Placements& placements, Axis axis, const std::string& name) {
  const auto rank_of = [&](int a) { return std::pair(placements[static_cast<size_t>(a)].inner, a); };
  const auto mine = static_cast<int>(axis);
  const Placement& cut = placements[static_cast<size_t>(mine)];
  if (cut.kind != PlacementKind::shard) return;
  for (int other = 0; other < axis_count; ++other) {
    const Placement& placement = placements[static_cast<size_t>(other)];
    const bool same = other != mine && placement.kind == PlacementKind::shard && placement.dim == cut.dim;
    ATHANOR_ASSERT(!same || rank_of(other) < rank_of(mine), "{}: axis {} cuts what {} already cut", name,
                   name_of(static_cast<Axis>(other)), name_of(axis));
  }
}

}  // namespace

ShardedGraph::Variant ShardedGraph::convert(ValueId id, const Variant& from, Axis axis, const Placement& to,
                                            Part part) {
  Variant current = from;
  const auto now = [&] { return current.placements[static_cast<size_t>(axis)]; };
  if (now().repeats_partial) current = step(id, current, axis, whole_repeats(now()), part);
  const bool recut = now().kind == PlacementKind::shard && to.kind == PlacementKind::shard &&
                     now().dim == to.dim && now() != to;
  if (recut) current = step(id, current, axis, {}, part);
  return now() == to ? current : step(id, current, axis, to, part);
}

// One collective, or this rank's part of what all have.
ShardedGraph::Variant ShardedGraph::step(ValueId id, const Variant& from, Axis axis, const Placement& to,
                                         Part part) {
  const Placement now = from.placements[static_cast<size_t>(axis)];
  Variant result = from;
  result.placements[static_cast<size_t>(axis)] = to;
  Attributes attributes;
  attributes.axis = axis;
  attributes.ranks = mesh_.size(axis);
  OperationKind kind{};
  const char* suffix = "";
  const bool to_part = to.kind == PlacementKind::shard;
  ATHANOR_ASSERT(to.kind != PlacementKind::partial, "{}: nothing becomes partial", global_.value(id).name);
  if (now.repeats_partial || (now.kind == PlacementKind::partial && !to_part)) {
    kind = OperationKind::all_reduce;
    attributes.from = now;
    suffix = ".reduced";
  } else if (now.kind == PlacementKind::partial) {
    kind = OperationKind::reduce_scatter;
    attributes.to = to;
    suffix = ".scattered";
  } else if (now.kind == PlacementKind::replicate) {
    kind = OperationKind::local_part;
    attributes.to = to;
    suffix = ".part";
  } else if (to_part) {
    kind = OperationKind::all_to_all;
    attributes.from = now;
    attributes.to = to;
    suffix = ".exchanged";
  } else {
    kind = OperationKind::all_gather;
    attributes.from = now;
    suffix = ".gathered";
    result.gathered = true;
  }
  const Value& value = global_.value(id);
  expect_innermost(from.placements, axis, value.name);
  expect_innermost(result.placements, axis, value.name);
  result.local =
      make(value.name + suffix, value.dtype, value.shape, result.placements, graph_.value(from.local).role);
  append(kind, {from.local}, {result.local}, attributes, part);
  return result;
}

}  // namespace athanor
