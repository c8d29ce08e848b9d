#include "athanor/compile/bucket_graphs.h"

#include <algorithm>

#include "athanor/base/error.h"

namespace athanor {

namespace {

constexpr Placement partial_sum{.kind = PlacementKind::partial};
constexpr Placement part{.kind = PlacementKind::shard, .dim = 0};

Attributes over(Axis axis, const Layout& layout) {
  Attributes attributes;
  attributes.axis = axis;
  attributes.ranks = layout.mesh().size(axis);
  return attributes;
}

ValueId add_bucket(Graph& graph, const std::string& name, DType dtype, const Shape& shape,
                   const Placements& placements, Role role, const Layout& layout) {
  return graph.add_value({.name = name,
                          .dtype = dtype,
                          .shape = storage_shape(shape, placements, layout.mesh()),
                          .placements = placements,
                          .role = role});
}

// What is due of a member over `tensor`; nothing when it is whole.
Placement due(const BucketMember& member, const std::map<std::string, Placements>& gradients) {
  const auto known = gradients.find(member.name);
  ATHANOR_ASSERT(known != gradients.end(), "no gradient of {}", member.name);
  const Placement& placement = known->second[static_cast<size_t>(Axis::tensor)];
  if (placement.kind == PlacementKind::partial) return placement;
  if (!placement.repeats_partial) return {};
  // Which ranks are neighbours does not depend on what is cut.
  return {.kind = PlacementKind::shard, .repeat = placement.repeat, .repeats_partial = true};
}

// One operation for each run of neighbours that need the same.
void append_member_sums(Graph& graph, ValueId bucket, const BucketTable& table,
                        const std::map<std::string, Placements>& gradients, const Layout& layout) {
  for (size_t first = 0; first < table.members.size();) {
    const Placement placement = due(table.members[first], gradients);
    size_t end = first + 1;
    while (end < table.members.size() && due(table.members[end], gradients) == placement) ++end;
    if (placement.kind != PlacementKind::replicate) {
      Attributes attributes = over(Axis::tensor, layout);
      attributes.from = placement;
      attributes.offset = table.members[first].offset;
      attributes.extent = table.members[end - 1].offset + table.members[end - 1].length() - attributes.offset;
      graph.add_operation(OperationKind::reduce_members, {}, {bucket}, attributes, Part::update);
    }
    first = end;
  }
}

std::vector<Axis> used_axes(const std::vector<Axis>& axes, const Layout& layout) {
  std::vector<Axis> used;
  for (const Axis axis : axes) {
    if (layout.mesh().size(axis) > 1) used.push_back(axis);
  }
  return used;
}

Placements partial_over(const std::vector<Axis>& axes) {
  Placements placements;
  for (const Axis axis : axes) placements[static_cast<size_t>(axis)] = partial_sum;
  return placements;
}

// Sums all of a bucket, or of the rank's part of it, over an axis, in place.
void append_whole_sum(Graph& graph, ValueId bucket, Axis axis, const Layout& layout) {
  Attributes attributes = over(axis, layout);
  attributes.from = partial_sum;
  attributes.extent = graph.value(bucket).shape[0];
  graph.add_operation(OperationKind::reduce_members, {}, {bucket}, attributes, Part::update);
}

}  // namespace

Graph scatter_bucket_graph(const BucketTable& table, const std::map<std::string, Placements>& gradients,
                           const Layout& layout, DType dtype) {
  Graph graph;
  graph.name = "scatter." + table.name;
  const Shape shape{table.length()};
  Placements placements = partial_over(used_axes({Axis::shard, Axis::context, Axis::replica}, layout));
  const ValueId value =
      add_bucket(graph, "gradients." + table.name, dtype, shape, placements, Role::bucket_gradient, layout);
  graph.inputs = {value};
  if (layout.mesh().size(Axis::tensor) > 1) append_member_sums(graph, value, table, gradients, layout);
  placements[static_cast<size_t>(Axis::shard)] = part;
  const ValueId mine =
      add_bucket(graph, "reduced." + table.name, dtype, shape, placements, Role::bucket_gradient, layout);
  Attributes attributes = over(Axis::shard, layout);
  attributes.to = part;
  graph.add_operation(OperationKind::reduce_scatter_bucket, {value}, {mine}, attributes, Part::update);
  graph.outputs = {mine};
  return graph;
}

Graph sum_bucket_graph(const BucketTable& table, const std::map<std::string, Placements>& gradients,
                       const Layout& layout, bool cut, DType dtype) {
  Graph graph;
  graph.name = "sum." + table.name;
  const std::vector<Axis> axes = cut ? used_axes({Axis::context, Axis::replica}, layout)
                                     : used_axes({Axis::shard, Axis::context, Axis::replica}, layout);
  Placements placements = partial_over(axes);
  if (cut) placements[static_cast<size_t>(Axis::shard)] = part;
  const ValueId value = add_bucket(graph, (cut ? "reduced." : "gradients.") + table.name, dtype,
                                   {table.length()}, placements, Role::bucket_gradient, layout);
  if (!cut && layout.mesh().size(Axis::tensor) > 1)
    append_member_sums(graph, value, table, gradients, layout);
  for (const Axis axis : axes) append_whole_sum(graph, value, axis, layout);
  graph.inputs = {value};
  graph.outputs = {value};
  return graph;
}

Graph on_bucket_part(Graph graph, const Layout& layout) {
  int64_t whole = 0;
  for (Value& value : graph.values) {
    if (value.role == Role::scalar) continue;
    whole = value.shape[0];
    value.placements[static_cast<size_t>(Axis::shard)] = part;
    value.shape = storage_shape(value.shape, value.placements, layout.mesh());
  }
  for (Operation& operation : graph.operations) operation.attributes.extent = whole;
  return graph;
}

Graph gather_bucket_graph(const BucketTable& table, const Layout& layout, DType dtype) {
  Graph graph;
  graph.name = "gather." + table.name;
  Placements placements;
  placements[static_cast<size_t>(Axis::shard)] = part;
  const Shape shape{table.length()};
  const ValueId mine =
      add_bucket(graph, "part." + table.name, dtype, shape, placements, Role::working, layout);
  const ValueId whole = add_bucket(graph, "working." + table.name, dtype, shape, {}, Role::working, layout);
  Attributes attributes = over(Axis::shard, layout);
  attributes.from = part;
  graph.add_operation(OperationKind::all_gather, {mine}, {whole}, attributes, Part::update);
  graph.inputs = {mine};
  graph.outputs = {whole};
  return graph;
}

Graph sum_graph(const std::string& name, int64_t length, const std::vector<Axis>& axes,
                const Layout& layout) {
  Graph graph;
  graph.name = "sum." + name;
  const std::vector<Axis> used = used_axes(axes, layout);
  ValueId value =
      add_bucket(graph, name + ".part", DType::fp64, {length}, partial_over(used), Role::scalar, layout);
  graph.inputs = {value};
  for (const Axis axis : used) {
    Value sum = graph.value(value);
    sum.name = axis == used.back() ? name : fmt::format("{}.{}", name, name_of(axis));
    sum.placements[static_cast<size_t>(axis)] = {};
    const ValueId result = graph.add_value(std::move(sum));
    Attributes attributes = over(axis, layout);
    attributes.from = partial_sum;
    graph.add_operation(OperationKind::all_reduce, {value}, {result}, attributes, Part::update);
    value = result;
  }
  graph.outputs = {value};
  return graph;
}

}  // namespace athanor
