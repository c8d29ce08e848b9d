#include "athanor/execute/collective_task.h"

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/kernels/tensor_elements.h"
#include "athanor/program/program.h"

namespace athanor {

namespace {

int64_t bytes_of(const Shape& shape, DType dtype) {
  return shape.elements() * static_cast<int64_t>(size_of(dtype));
}

int64_t outer_elements(const Shape& shape, int dim) {
  int64_t elements = 1;
  for (int d = 0; d < dim; ++d) elements *= shape[d];
  return elements;
}

int64_t inner_elements(const Shape& shape, int dim) {
  int64_t elements = 1;
  for (int d = dim + 1; d < shape.rank(); ++d) elements *= shape[d];
  return elements;
}

// Whether parts lie one after another in the whole, in the order of the members.
bool is_in_order(const Shape& whole, const Placement& placement) {
  return outer_elements(whole, placement.dim) == 1 && placement.pattern == ShardPattern::contiguous &&
         placement.repeat == 1;
}

bool accumulates(OperationKind kind) {
  return kind == OperationKind::reduce_scatter_bucket;
}

// How many elements of the block sent to or got from a member an all_to_all has.
Shape block_shape(const Shape& x, const Shape& y, const Attributes& attributes) {
  Shape block = x;
  block.set(attributes.to.dim, y[attributes.to.dim]);
  return block;
}

}  // namespace

Group group_on_axis(const Mesh& mesh, const Coordinates& coordinates, Axis axis, int32_t repeat) {
  Group group;
  const auto index = static_cast<size_t>(axis);
  const int32_t size = mesh.size(axis), mine = coordinates[index];
  const int32_t first = repeat == 0 ? 0 : mine / repeat * repeat;
  const int32_t end = repeat == 0 ? size : std::min(first + repeat, size);
  group.id = static_cast<GroupId>(index) + repeat * axis_count;
  group.name = repeat == 0 ? name_of(axis) : fmt::format("{} (neighbours of {})", name_of(axis), repeat);
  Coordinates at = coordinates;
  for (int32_t i = first; i < end; ++i) {
    at[index] = i;
    group.ranks.push_back(rank_of(mesh, at));
  }
  return group;
}

int64_t collective_workspace_bytes(const Operation& operation, std::span<const OperandType> inputs,
                                   std::span<const OperandType> outputs) {
  const Attributes& attributes = operation.attributes;
  const auto bytes = [](const OperandType& type) { return aligned(bytes_of(type.shape, type.dtype)); };
  switch (operation.kind) {
    case OperationKind::all_gather:
      return is_in_order(outputs[0].shape, attributes.from) ? 0 : attributes.ranks * bytes(inputs[0]);
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_bucket: {
      const int64_t packed =
          is_in_order(inputs[0].shape, attributes.to) ? 0 : attributes.ranks * bytes(outputs[0]);
      return packed + (accumulates(operation.kind) ? bytes(outputs[0]) : 0);
    }
    case OperationKind::all_to_all:
      return 2 * attributes.ranks *
             aligned(bytes_of(block_shape(inputs[0].shape, outputs[0].shape, attributes), inputs[0].dtype));
    default:
      return 0;
  }
}

CollectiveTask::CollectiveTask(const RankContext& context, const Operation& operation,
                               const KernelArguments& arguments, std::string label)
    : context_(context),
      attributes_(operation.attributes),
      label_(std::move(label)),
      kind_(operation.kind),
      workspace_(arguments.workspace) {
  const bool among_neighbours =
      (kind_ == OperationKind::all_reduce || kind_ == OperationKind::reduce_members) &&
      attributes_.from.kind == PlacementKind::shard;
  group_ = group_on_axis(*context.mesh, context.coordinates, attributes_.axis,
                         among_neighbours ? attributes_.from.repeat : 0);
  const auto mine = std::ranges::find(group_.ranks, context.communicator->rank());
  ATHANOR_ASSERT(mine != group_.ranks.end(), "rank {} is not in its own group", context.communicator->rank());
  member_ = static_cast<int>(mine - group_.ranks.begin());
  context_.communicator->add_group(group_);
  const auto& inputs = arguments.inputs;
  const auto& outputs = arguments.outputs;
  switch (kind_) {
    case OperationKind::all_reduce:
      prepare_all_reduce(inputs[0], outputs[0]);
      break;
    case OperationKind::all_gather:
      prepare_all_gather(inputs[0], outputs[0]);
      break;
    case OperationKind::reduce_scatter:
    case OperationKind::reduce_scatter_bucket:
      if (accumulates(kind_) && arguments.accumulate) added_to_ = outputs[0];
      prepare_reduce_scatter(inputs[0], outputs[0]);
      break;
    case OperationKind::all_to_all:
      prepare_all_to_all(inputs[0], outputs[0]);
      break;
    case OperationKind::shift:
      for (size_t i = 0; i < inputs.size(); ++i) {
        if (inputs[i].present()) prepare_shift(inputs[i], outputs[i]);
      }
      break;
    case OperationKind::reduce_members:
      prepare_reduce_members(outputs[0]);
      break;
    default:
      ATHANOR_ASSERT(false, "{} is no collective", name_of(kind_));
  }
}

CollectiveTask::~CollectiveTask() = default;

void CollectiveTask::run() {
  for (const Copy& copy : before_) copy_to_block(copy);
  for (const auto& collective : collectives_) context_.communicator->run(*collective);
  if (sum_ != nullptr) add_to_output();
  for (const Copy& copy : after_) copy_from_block(copy);
  if (padded_.present()) {
    zero_elements(TensorElements(padded_), padding_from_, padded_.shape.elements() - padding_from_);
  }
}

std::byte* CollectiveTask::take_workspace(int64_t bytes) {
  const auto taken = static_cast<size_t>(aligned(bytes));
  ATHANOR_ASSERT(taken <= workspace_.size(), "{} in {}: workspace of {} more bytes needed, {} left",
                 name_of(kind_), label_, taken, workspace_.size());
  std::byte* at = workspace_.data();
  workspace_ = workspace_.subspan(taken);
  return at;
}

// Where all of x lies without gaps when the collective starts.
std::byte* CollectiveTask::compact_input(const TensorView& x) {
  if (x.compact()) return x.data;
  std::byte* packed = take_workspace(bytes_of(x.shape, x.dtype));
  before_.push_back({x, 0, {{0, x.shape[0]}}, packed});
  return packed;
}

std::byte* CollectiveTask::compact_output(const TensorView& y) {
  if (y.compact()) return y.data;
  std::byte* packed = take_workspace(bytes_of(y.shape, y.dtype));
  after_.push_back({y, 0, {{0, y.shape[0]}}, packed});
  return packed;
}

// What a member of the axis stores of a dim of `length`.
std::vector<Range> CollectiveTask::ranges_of(const Placement& placement, int64_t length, int member) const {
  Placement along = placement;
  along.dim = 0;
  Coordinates at{};
  at[static_cast<size_t>(attributes_.axis)] = member;
  return stored_ranges({length}, placements_of(attributes_.axis, along),
                       mesh_of(attributes_.axis, attributes_.ranks), at)[0];
}

// By member: the elements that it owns of a whole whose parts lie in order.
std::vector<int64_t> CollectiveTask::owned_counts(const Shape& whole, const Placement& placement) const {
  std::vector<int64_t> counts;
  Coordinates at{};
  for (int32_t member = 0; member < attributes_.ranks; ++member) {
    at[static_cast<size_t>(attributes_.axis)] = member;
    const auto owned_by_dim = owned_ranges(whole, placements_of(attributes_.axis, placement),
                                           mesh_of(attributes_.axis, attributes_.ranks), at);
    int64_t owned = 0;
    for (const Range& range : owned_by_dim[placement.dim]) owned += range.size();
    counts.push_back(owned * inner_elements(whole, placement.dim));
  }
  return counts;
}

void CollectiveTask::prepare(CollectiveKind kind, const std::byte* input, std::byte* output, DType dtype,
                             std::vector<int64_t> counts, std::vector<int64_t> receive_counts) {
  Collective collective;
  collective.group = group_.id;
  collective.spec.kind = kind;
  collective.spec.dtype = dtype;
  collective.spec.wire = wire_type(kind_, dtype, context_.gradient_wire);
  if (has_reduction(kind) && attributes_.from.kind == PlacementKind::partial &&
      attributes_.from.reduction == Reduction::max)
    collective.spec.reduction = CollectiveReduction::max;
  collective.spec.counts = std::move(counts);
  collective.spec.receive_counts = std::move(receive_counts);
  collective.input = input;
  collective.output = output;
  collective.label = label_;
  collectives_.push_back(context_.communicator->prepare(collective));
}

void CollectiveTask::prepare_all_reduce(const TensorView& x, const TensorView& y) {
  std::byte* input = compact_input(x);
  prepare(CollectiveKind::all_reduce, input, compact_output(y), x.dtype, {x.shape.elements()});
}

void CollectiveTask::prepare_all_gather(const TensorView& x, const TensorView& y) {
  const Placement& from = attributes_.from;
  const auto members = static_cast<int>(group_.ranks.size());
  if (is_in_order(y.shape, from)) {
    std::byte* input = compact_input(x);
    prepare(CollectiveKind::all_gather, input, compact_output(y), x.dtype, owned_counts(y.shape, from));
    return;
  }
  const int64_t block = bytes_of(x.shape, x.dtype);
  std::byte* parts = take_workspace(members * block);
  prepare(CollectiveKind::all_gather, compact_input(x), parts, x.dtype,
          std::vector<int64_t>(static_cast<size_t>(members), x.shape.elements()));
  for (int m = 0; m < members; ++m)
    after_.push_back({y, from.dim, ranges_of(from, y.shape[from.dim], m), parts + m * block});
}

void CollectiveTask::prepare_reduce_scatter(const TensorView& x, const TensorView& y) {
  const Placement& to = attributes_.to;
  const auto members = static_cast<int>(group_.ranks.size());
  const int64_t block = bytes_of(y.shape, y.dtype);
  const bool adds = added_to_.present(), in_order = is_in_order(x.shape, to);
  std::byte* const parts = in_order ? nullptr : take_workspace(members * block);
  std::byte* const output = adds ? take_workspace(block) : compact_output(y);
  if (adds) sum_ = output;
  if (!in_order) {
    for (int m = 0; m < members; ++m)
      before_.push_back({x, to.dim, ranges_of(to, x.shape[to.dim], m), parts + m * block});
    prepare(CollectiveKind::reduce_scatter, parts, output, x.dtype,
            std::vector<int64_t>(static_cast<size_t>(members), y.shape.elements()));
    return;
  }
  std::vector<int64_t> counts = owned_counts(x.shape, to);
  const int64_t own = counts[static_cast<size_t>(member_)];
  if (adds) {
    added_to_.shape = {own};
  } else {
    ATHANOR_ASSERT(y.compact(), "a part of what is in order is compact");
    padded_ = y;
    padding_from_ = own;
  }
  prepare(CollectiveKind::reduce_scatter, compact_input(x), output, x.dtype, std::move(counts));
}

void CollectiveTask::prepare_all_to_all(const TensorView& x, const TensorView& y) {
  const Placement &from = attributes_.from, &to = attributes_.to;
  const auto members = static_cast<int>(group_.ranks.size());
  const Shape shape = block_shape(x.shape, y.shape, attributes_);
  const int64_t block = bytes_of(shape, x.dtype);
  std::byte* sent = take_workspace(members * block);
  std::byte* got = take_workspace(members * block);
  for (int m = 0; m < members; ++m) {
    before_.push_back({x, to.dim, ranges_of(to, x.shape[to.dim], m), sent + m * block});
    after_.push_back({y, from.dim, ranges_of(from, y.shape[from.dim], m), got + m * block});
  }
  const std::vector<int64_t> counts(static_cast<size_t>(members), shape.elements());
  prepare(CollectiveKind::all_to_all, sent, got, x.dtype, counts, counts);
}

void CollectiveTask::prepare_shift(const TensorView& x, const TensorView& y) {
  const auto members = static_cast<int>(group_.ranks.size());
  std::vector<int64_t> sent(static_cast<size_t>(members), 0), got = sent;
  sent[static_cast<size_t>((member_ + 1) % members)] = x.shape.elements();
  got[static_cast<size_t>((member_ + members - 1) % members)] = y.shape.elements();
  std::byte* input = compact_input(x);
  prepare(CollectiveKind::all_to_all, input, compact_output(y), x.dtype, std::move(sent), std::move(got));
}

void CollectiveTask::prepare_reduce_members(const TensorView& bucket) {
  std::byte* first = bucket.data + attributes_.offset * static_cast<int64_t>(size_of(bucket.dtype));
  prepare(CollectiveKind::all_reduce, first, first, bucket.dtype, {attributes_.extent});
}

void CollectiveTask::add_to_output() const {
  const auto add = [&](auto* to) {
    const auto* from = reinterpret_cast<decltype(to)>(const_cast<std::byte*>(sum_));
    for (int64_t i = 0; i < added_to_.shape.elements(); ++i) to[i] += from[i];
  };
  if (added_to_.dtype == DType::fp64) return add(added_to_.as<double>());
  ATHANOR_ASSERT(added_to_.dtype == DType::fp32, "gradients are wide");
  add(added_to_.as<float>());
}

// Calls visit(element of the tensor, element of the block, how many both hold, how many of the block behind
// them are padding) for each run that lies together in both.
template <class Visit>
void CollectiveTask::for_each_run(const Copy& copy, const Visit& visit) {
  const Shape& shape = copy.tensor.shape;
  const int64_t length = shape[copy.dim], inner = inner_elements(shape, copy.dim);
  const int64_t outer = outer_elements(shape, copy.dim);
  int64_t next = 0;
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& range : copy.ranges) {
      const int64_t held = std::max<int64_t>(0, std::min(range.end, length) - range.begin);
      visit((o * length + range.begin) * inner, next, held * inner, (range.size() - held) * inner);
      next += range.size() * inner;
    }
  }
}

void CollectiveTask::copy_to_block(const Copy& copy) {
  const TensorElements tensor(copy.tensor), block(copy.block, copy.tensor.dtype);
  for_each_run(copy, [&](int64_t from, int64_t to, int64_t count, int64_t padding) {
    copy_elements(tensor, from, block, to, count);
    zero_elements(block, to + count, padding);
  });
}

void CollectiveTask::copy_from_block(const Copy& copy) {
  const TensorElements tensor(copy.tensor), block(copy.block, copy.tensor.dtype);
  for_each_run(copy, [&](int64_t to, int64_t from, int64_t count, int64_t) {
    copy_elements(block, from, tensor, to, count);
  });
}

}  // namespace athanor
