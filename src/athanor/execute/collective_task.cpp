#include "athanor/execute/collective_task.h"

#include <algorithm>
#include <cstring>

#include "athanor/base/error.h"

namespace athanor {

namespace {

int64_t aligned(int64_t bytes) {
  return (bytes + 63) / 64 * 64;
}

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
    const auto size = static_cast<int64_t>(size_of(padded_.dtype));
    const int64_t elements = padded_.shape.elements();
    if (padding_from_ < elements)
      std::memset(padded_.data + padding_from_ * size, 0,
                  static_cast<size_t>((elements - padding_from_) * size));
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
  Shape line{length};
  Placement along = placement;
  along.dim = 0;
  Coordinates at{};
  at[static_cast<size_t>(attributes_.axis)] = member;
  return stored_ranges(line, placements_of(attributes_.axis, along),
                       mesh_of(attributes_.axis, attributes_.ranks), at)[0];
}

void CollectiveTask::prepare(CollectiveKind kind, const std::byte* input, std::byte* output, DType dtype,
                             std::vector<int64_t> counts, std::vector<int64_t> receive_counts) {
  Collective collective;
  collective.group = group_.id;
  collective.spec.kind = kind;
  collective.spec.dtype = dtype;
  collective.spec.wire = dtype;
  const bool gradients =
      kind_ == OperationKind::reduce_members || kind_ == OperationKind::reduce_scatter_bucket;
  if (gradients && dtype == DType::fp32) collective.spec.wire = context_.gradient_wire;
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
  const int64_t length = y.shape[from.dim], inner = inner_elements(y.shape, from.dim);
  std::vector<int64_t> counts;
  if (is_in_order(y.shape, from)) {
    for (int m = 0; m < members; ++m) {
      int64_t owned = 0;
      for (const Range& range : ranges_of(from, length, m))
        owned += std::max<int64_t>(0, std::min(range.end, length) - range.begin);
      counts.push_back(owned * inner);
    }
    std::byte* input = compact_input(x);
    prepare(CollectiveKind::all_gather, input, compact_output(y), x.dtype, std::move(counts));
    return;
  }
  const int64_t block = bytes_of(x.shape, x.dtype);
  std::byte* parts = take_workspace(members * block);
  counts.assign(static_cast<size_t>(members), x.shape.elements());
  prepare(CollectiveKind::all_gather, compact_input(x), parts, x.dtype, std::move(counts));
  for (int m = 0; m < members; ++m)
    after_.push_back({y, from.dim, ranges_of(from, length, m), parts + m * block});
}

void CollectiveTask::prepare_reduce_scatter(const TensorView& x, const TensorView& y) {
  const Placement& to = attributes_.to;
  const auto members = static_cast<int>(group_.ranks.size());
  const int64_t length = x.shape[to.dim], inner = inner_elements(x.shape, to.dim);
  const int64_t block = bytes_of(y.shape, y.dtype);
  const bool adds = added_to_.present();
  std::vector<int64_t> counts;
  if (is_in_order(x.shape, to)) {
    for (int m = 0; m < members; ++m) {
      int64_t owned = 0;
      for (const Range& range : ranges_of(to, length, m))
        owned += std::max<int64_t>(0, std::min(range.end, length) - range.begin);
      counts.push_back(owned * inner);
    }
    std::byte* output = adds ? take_workspace(block) : compact_output(y);
    if (adds) {
      sum_ = output;
      added_to_.shape = {counts[static_cast<size_t>(member_)]};
    } else {
      ATHANOR_ASSERT(y.compact(), "a part of what is in order is compact");
      padded_ = y;
      padding_from_ = counts[static_cast<size_t>(member_)];
    }
    prepare(CollectiveKind::reduce_scatter, compact_input(x), output, x.dtype, std::move(counts));
    return;
  }
  std::byte* parts = take_workspace(members * block);
  for (int m = 0; m < members; ++m)
    before_.push_back({x, to.dim, ranges_of(to, length, m), parts + m * block});
  counts.assign(static_cast<size_t>(members), y.shape.elements());
  std::byte* output = adds ? take_workspace(block) : compact_output(y);
  if (adds) sum_ = output;
  prepare(CollectiveKind::reduce_scatter, parts, output, x.dtype, std::move(counts));
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

namespace {

// Calls visit(tensor bytes, block bytes, count) for each stretch of bytes that both hold together; tensor
// bytes are null where the block holds padding.
template <class Visit>
void for_each_stretch(const TensorView& tensor, int dim, const std::vector<Range>& ranges, std::byte* block,
                      const Visit& visit) {
  const Shape& shape = tensor.shape;
  const auto size = static_cast<int64_t>(size_of(tensor.dtype));
  const int64_t length = shape[dim], inner = inner_elements(shape, dim), outer = outer_elements(shape, dim);
  const bool strided = shape.rank() >= 2 && !tensor.compact();
  const int64_t row = strided ? shape.elements_per_token() : 0;
  // Elements from `first` on, in row-major order; rows of tokens may stand apart.
  const auto visit_elements = [&](int64_t first, int64_t count, bool is_padding) {
    while (count > 0) {
      const int64_t here = strided ? std::min(count, row - first % row) : count;
      std::byte* at =
          tensor.data + (strided ? first / row * tensor.token_stride + first % row : first) * size;
      visit(is_padding ? nullptr : at, block, static_cast<size_t>(here * size));
      block += here * size;
      first += here;
      count -= here;
    }
  };
  for (int64_t o = 0; o < outer; ++o) {
    for (const Range& range : ranges) {
      const int64_t end = std::max(range.begin, std::min(range.end, length));
      visit_elements((o * length + range.begin) * inner, (end - range.begin) * inner, false);
      if (end == range.end) continue;
      const auto padding = static_cast<size_t>((range.end - end) * inner * size);
      visit(static_cast<std::byte*>(nullptr), block, padding);
      block += padding;
    }
  }
}

}  // namespace

void CollectiveTask::copy_to_block(const Copy& copy) const {
  for_each_stretch(copy.tensor, copy.dim, copy.ranges, copy.block,
                   [](const std::byte* tensor, std::byte* block, size_t bytes) {
                     if (tensor != nullptr) {
                       std::memcpy(block, tensor, bytes);
                     } else {
                       std::memset(block, 0, bytes);
                     }
                   });
}

void CollectiveTask::copy_from_block(const Copy& copy) const {
  for_each_stretch(copy.tensor, copy.dim, copy.ranges, copy.block,
                   [](std::byte* tensor, const std::byte* block, size_t bytes) {
                     if (tensor != nullptr) std::memcpy(tensor, block, bytes);
                   });
}

}  // namespace athanor
