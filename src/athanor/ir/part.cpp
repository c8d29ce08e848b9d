#include "athanor/ir/part.h"

#include <algorithm>

#include "athanor/base/error.h"

namespace athanor {

namespace {

struct CutDim {
  ValueId value = no_value;
  int dim = 0;
};

CutDim cut_dim(const Operation& operation) {
  switch (operation.kind) {
    case OperationKind::embedding:
      return {operation.inputs[0], 0};
    case OperationKind::embedding_gradient:
      return {operation.outputs[0], 0};
    case OperationKind::squared_norms:
    case OperationKind::adamw:
    case OperationKind::sgd:
    case OperationKind::lamb_norms:
    case OperationKind::lamb:
      return {operation.inputs[0], 0};
    case OperationKind::matmul:
      return {operation.inputs[1], 1};
    case OperationKind::attention:
    case OperationKind::attention_part:
      return {operation.inputs[0], 2};
    case OperationKind::attention_gradient:
    case OperationKind::attention_part_gradient:
      return {operation.inputs[1], 2};
    case OperationKind::vocabulary_max:
    case OperationKind::vocabulary_sums:
    case OperationKind::vocabulary_loss:
      return {operation.inputs[0], 2};
    default:
      ATHANOR_ASSERT(false, "{} has no cut dim", name_of(operation.kind));
      return {};
  }
}

// Empties the members that another rank owns.
BucketTable owned_members(const BucketTable& table, const Mesh& mesh, const Coordinates& coordinates) {
  BucketTable owned = table;
  for (BucketMember& member : owned.members) {
    const Placement& placement = member.placements[static_cast<size_t>(Axis::tensor)];
    const bool cut = placement.kind == PlacementKind::shard;
    const int32_t holders = cut ? placement.repeat : mesh.size(Axis::tensor);
    if (coordinate(coordinates, Axis::tensor) % holders != 0) member.shape = {0};
  }
  return owned;
}

// Appends `next`, or lengthens the last run by it.
void append(std::vector<StoredRun>& runs, const StoredRun& next) {
  if (next.length <= 0) return;
  if (!runs.empty()) {
    StoredRun& last = runs.back();
    if (last.local_first + last.length == next.local_first &&
        last.global_first + last.length == next.global_first) {
      last.length += next.length;
      return;
    }
  }
  runs.push_back(next);
}

}  // namespace

std::vector<StoredRun> stored_runs(const Shape& shape, const Placements& placements, const Mesh& mesh,
                                   const Coordinates& coordinates) {
  const auto stored = stored_ranges(shape, placements, mesh, coordinates);
  // From the last dim outwards: the runs of the dims behind, repeated for each index of this one.
  std::vector<StoredRun> runs{{0, 0, 1}};
  int64_t local_stride = 1, global_stride = 1;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    const bool whole = runs.size() == 1 && runs[0].local_first == 0 && runs[0].global_first == 0 &&
                       runs[0].length == local_stride && local_stride == global_stride;
    std::vector<StoredRun> outer;
    int64_t position = 0;
    for (const Range& range : stored[static_cast<size_t>(dim)]) {
      const int64_t end = std::min(range.end, shape[dim]);
      if (whole) {
        append(outer,
               {position * local_stride, range.begin * global_stride, (end - range.begin) * local_stride});
      } else {
        for (int64_t index = range.begin; index < end; ++index) {
          const int64_t local = (position + index - range.begin) * local_stride;
          for (const StoredRun& run : runs) {
            append(outer, {local + run.local_first, index * global_stride + run.global_first, run.length});
          }
        }
      }
      position += range.size();
    }
    runs = std::move(outer);
    local_stride *= position;
    global_stride *= shape[dim];
  }
  return runs;
}

std::vector<StoredRun> part_of_runs(const std::vector<StoredRun>& runs, int64_t first, int64_t length) {
  std::vector<StoredRun> part;
  for (const StoredRun& run : runs) {
    const int64_t begin = std::max(run.local_first, first);
    const int64_t end = std::min(run.local_first + run.length, first + length);
    append(part, {begin - first, run.global_first + begin - run.local_first, end - begin});
  }
  return part;
}

int64_t bucket_part_length(int64_t length, const Mesh& mesh) {
  return storage_shape({length}, placements_of(Axis::shard, {.kind = PlacementKind::shard}), mesh)[0];
}

BucketTable table_of_part(const BucketTable& table, int64_t first, int64_t length) {
  BucketTable part{.name = table.name, .members = {}};
  for (BucketMember member : table.members) {
    const int64_t begin = std::clamp<int64_t>(member.offset - first, 0, length);
    const int64_t end = std::clamp<int64_t>(member.offset + member.length() - first, 0, length);
    member.offset = begin;
    member.shape = {end - begin};
    part.members.push_back(std::move(member));
  }
  return part;
}

int64_t first_of_part(const Graph& graph, const Operation& operation, const Mesh& mesh,
                      const Coordinates& coordinates) {
  if (operation.attributes.extent == 0) return 0;
  const CutDim cut = cut_dim(operation);
  const Value& value = graph.value(cut.value);
  Shape whole = value.shape;
  whole.set(cut.dim, operation.attributes.extent);
  const auto stored = stored_ranges(whole, value.placements, mesh, coordinates);
  const auto& ranges = stored[static_cast<size_t>(cut.dim)];
  return ranges.empty() ? 0 : ranges.front().begin;
}

BucketTable table_on_rank(const Graph& graph, const Operation& operation, const Mesh& mesh,
                          const Coordinates& coordinates) {
  const BucketTable& table = graph.tables.at(static_cast<size_t>(operation.attributes.table));
  const bool norms =
      operation.kind == OperationKind::squared_norms || operation.kind == OperationKind::lamb_norms;
  const BucketTable mine = norms ? owned_members(table, mesh, coordinates) : table;
  if (operation.attributes.extent == 0) return mine;
  return table_of_part(mine, first_of_part(graph, operation, mesh, coordinates),
                       graph.value(operation.inputs[0]).shape[0]);
}

}  // namespace athanor
