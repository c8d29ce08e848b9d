#include "athanor/ir/placement.h"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>

#include "athanor/base/error.h"

namespace athanor {

namespace {

int64_t ceiling(int64_t length, int64_t parts) {
  return (length + parts - 1) / parts;
}

// Size of each of `pieces` equal pieces of a length: the ceiling, in whole units.
int64_t piece_size(int64_t length, int64_t pieces, int64_t unit) {
  return ceiling(ceiling(length, unit), pieces) * unit;
}

// Storage positions of part `index` of `parts` along a storage of `length`; they may go beyond it.
std::vector<Range> cut(int64_t length, int64_t parts, int64_t index, const Placement& placement) {
  const bool zigzag = placement.pattern == ShardPattern::zigzag;
  const int64_t pieces = zigzag ? 2 * parts : parts;
  const int64_t piece = piece_size(length, pieces, placement.unit);
  std::vector<Range> ranges{{index * piece, (index + 1) * piece}};
  if (zigzag) ranges.push_back({(pieces - 1 - index) * piece, (pieces - index) * piece});
  return ranges;
}

void append(std::vector<Range>& ranges, Range next) {
  if (next.size() == 0) return;
  if (!ranges.empty() && ranges.back().end == next.begin) {
    ranges.back().end = next.end;
  } else {
    ranges.push_back(next);
  }
}

// Maps ranges of the concatenation of `outer` to what `outer` holds there, and positions beyond it to
// padding: indices from `length` on.
std::vector<Range> compose(const std::vector<Range>& outer, const std::vector<Range>& inner, int64_t length) {
  std::vector<Range> result;
  for (const Range& wanted : inner) {
    int64_t start = 0;
    for (const Range& range : outer) {
      const int64_t begin = std::max(wanted.begin, start), end = std::min(wanted.end, start + range.size());
      if (begin < end) append(result, {range.begin + begin - start, range.begin + end - start});
      start += range.size();
    }
    const int64_t beyond = wanted.end - std::max(wanted.begin, start);
    if (beyond > 0) append(result, {length, length + beyond});
  }
  return result;
}

int64_t parts_of(const Placement& placement, const Mesh& mesh, int axis) {
  const int64_t ranks = mesh.sizes[static_cast<size_t>(axis)];
  ATHANOR_ASSERT(placement.repeat >= 1 && ranks % placement.repeat == 0, "repeat {} on {} ranks",
                 placement.repeat, ranks);
  return ranks / placement.repeat;
}

// The axes that shard a tensor, in the order in which they cut.
std::vector<int> cutting_axes(const Placements& placements) {
  std::vector<int> axes;
  for (const bool inner : {false, true}) {
    for (int axis = 0; axis < axis_count; ++axis) {
      const Placement& placement = placements[static_cast<size_t>(axis)];
      if (placement.kind == PlacementKind::shard && placement.inner == inner) axes.push_back(axis);
    }
  }
  return axes;
}

// The axes that number the ranks, the fastest first.
constexpr std::array<Axis, 5> numbering_axes = {Axis::tensor, Axis::context, Axis::shard, Axis::replica,
                                                Axis::pipeline};

}  // namespace

int64_t Mesh::ranks() const {
  int64_t ranks = 1;
  for (const Axis axis : numbering_axes) ranks *= size(axis);
  return ranks;
}

int64_t Mesh::data_ranks() const {
  return int64_t{size(Axis::replica)} * size(Axis::shard);
}

Coordinates coordinates_of(const Mesh& mesh, int32_t rank) {
  ATHANOR_ASSERT(rank >= 0 && rank < mesh.ranks(), "rank {} of {}", rank, mesh.ranks());
  Coordinates coordinates{};
  for (const Axis axis : numbering_axes) {
    coordinates[static_cast<size_t>(axis)] = rank % mesh.size(axis);
    rank /= mesh.size(axis);
  }
  return coordinates;
}

int32_t rank_of(const Mesh& mesh, const Coordinates& coordinates) {
  int32_t rank = 0, stride = 1;
  for (const Axis axis : numbering_axes) {
    ATHANOR_ASSERT(coordinate(coordinates, axis) >= 0 && coordinate(coordinates, axis) < mesh.size(axis),
                   "coordinate {} of {} on axis {}", coordinate(coordinates, axis), mesh.size(axis),
                   name_of(axis));
    rank += coordinate(coordinates, axis) * stride;
    stride *= mesh.size(axis);
  }
  return rank;
}

std::vector<std::vector<Range>> stored_ranges(const Shape& shape, const Placements& placements,
                                              const Mesh& mesh, const Coordinates& coordinates) {
  std::vector<std::vector<Range>> stored(static_cast<size_t>(shape.rank()));
  for (int dim = 0; dim < shape.rank(); ++dim) {
    if (shape[dim] > 0) stored[static_cast<size_t>(dim)].push_back({0, shape[dim]});
  }
  for (const int axis : cutting_axes(placements)) {
    const Placement& placement = placements[static_cast<size_t>(axis)];
    auto& ranges = stored.at(placement.dim);
    int64_t length = 0;
    for (const Range& range : ranges) length += range.size();
    const int64_t index = coordinates[static_cast<size_t>(axis)] / placement.repeat;
    ranges =
        compose(ranges, cut(length, parts_of(placement, mesh, axis), index, placement), shape[placement.dim]);
  }
  return stored;
}

std::vector<std::vector<Range>> owned_ranges(const Shape& shape, const Placements& placements,
                                             const Mesh& mesh, const Coordinates& coordinates) {
  auto owned = stored_ranges(shape, placements, mesh, coordinates);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    auto& ranges = owned[static_cast<size_t>(dim)];
    for (Range& range : ranges) range.end = std::min(range.end, shape[dim]);
    std::erase_if(ranges, [](const Range& range) { return range.begin >= range.end; });
  }
  return owned;
}

Shape storage_shape(const Shape& shape, const Placements& placements, const Mesh& mesh) {
  Shape stored = shape;
  for (const int axis : cutting_axes(placements)) {
    const Placement& placement = placements[static_cast<size_t>(axis)];
    const int64_t parts = parts_of(placement, mesh, axis), length = stored[placement.dim];
    stored.set(placement.dim, placement.pattern == ShardPattern::zigzag
                                  ? 2 * piece_size(length, 2 * parts, placement.unit)
                                  : piece_size(length, parts, placement.unit));
  }
  return stored;
}

Mesh mesh_of(Axis axis, int32_t ranks) {
  Mesh mesh;
  mesh.sizes[static_cast<size_t>(axis)] = ranks;
  return mesh;
}

Placements placements_of(Axis axis, const Placement& placement) {
  Placements placements;
  placements[static_cast<size_t>(axis)] = placement;
  return placements;
}

const char* name_of(Axis axis) {
  static constexpr std::array<const char*, axis_count> names = {
      "pipeline", "replica", "shard", "context", "tensor", "expert_replica", "expert"};
  return names[static_cast<size_t>(axis)];
}

std::optional<Axis> parse_axis(std::string_view text) {
  for (int axis = 0; axis < axis_count; ++axis) {
    if (text == name_of(static_cast<Axis>(axis))) return static_cast<Axis>(axis);
  }
  return std::nullopt;
}

std::string to_text(const Placement& placement) {
  switch (placement.kind) {
    case PlacementKind::replicate:
      return "replicate";
    case PlacementKind::partial:
      return placement.reduction == Reduction::sum ? "partial(sum)" : "partial(max)";
    case PlacementKind::shard:
      break;
  }
  return fmt::format("shard({}{}{}{}{}{})", placement.dim,
                     placement.pattern == ShardPattern::zigzag ? " zigzag" : "",
                     placement.unit > 1 ? fmt::format(" unit {}", placement.unit) : "",
                     placement.repeat > 1 ? fmt::format(" repeat {}", placement.repeat) : "",
                     placement.repeats_partial ? " partial" : "", placement.inner ? " inner" : "");
}

std::string to_text(const Placements& placements) {
  std::string text;
  for (int axis = 0; axis < axis_count; ++axis) {
    const Placement& placement = placements[static_cast<size_t>(axis)];
    if (placement.kind == PlacementKind::replicate) continue;
    text +=
        fmt::format("{}{}:{}", text.empty() ? "" : ",", name_of(static_cast<Axis>(axis)), to_text(placement));
  }
  return text.empty() ? text : "{" + text + "}";
}

namespace {

bool accept(std::string_view& text, std::string_view symbol) {
  if (!text.starts_with(symbol)) return false;
  text.remove_prefix(symbol.size());
  return true;
}

template <class Number>
bool parse_number(std::string_view& text, Number& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return error == std::errc{};
}

// Takes "shard(1 zigzag repeat 2)" or "partial(max)" off the front.
std::optional<Placement> take_placement(std::string_view& text) {
  Placement placement;
  if (accept(text, "partial(")) {
    placement.kind = PlacementKind::partial;
    if (accept(text, "max")) {
      placement.reduction = Reduction::max;
    } else if (!accept(text, "sum")) {
      return std::nullopt;
    }
  } else if (accept(text, "shard(")) {
    placement.kind = PlacementKind::shard;
    if (!parse_number(text, placement.dim) || placement.dim >= Shape::max_rank) return std::nullopt;
    if (accept(text, " zigzag")) placement.pattern = ShardPattern::zigzag;
    if (accept(text, " unit ") && (!parse_number(text, placement.unit) || placement.unit == 0)) {
      return std::nullopt;
    }
    if (accept(text, " repeat ") && (!parse_number(text, placement.repeat) || placement.repeat == 0)) {
      return std::nullopt;
    }
    placement.repeats_partial = accept(text, " partial");
    placement.inner = accept(text, " inner");
  } else {
    return std::nullopt;
  }
  if (!accept(text, ")")) return std::nullopt;
  return placement;
}

}  // namespace

std::optional<Placement> parse_placement(std::string_view text) {
  if (text == "replicate") return Placement{};
  const auto placement = take_placement(text);
  return text.empty() ? placement : std::nullopt;
}

std::optional<Placements> parse_placements(std::string_view text) {
  Placements placements;
  if (text.empty()) return placements;
  if (!accept(text, "{")) return std::nullopt;
  for (int axis = 0; axis < axis_count && !text.starts_with("}"); ++axis) {
    const std::string_view name = name_of(static_cast<Axis>(axis));
    if (!text.starts_with(name) || !text.substr(name.size()).starts_with(":")) continue;
    text.remove_prefix(name.size() + 1);
    const auto placement = take_placement(text);
    if (!placement) return std::nullopt;
    placements[static_cast<size_t>(axis)] = *placement;
    if (!accept(text, ",")) break;
    if (text.starts_with("}")) return std::nullopt;
  }
  if (text != "}") return std::nullopt;
  return placements;
}

}  // namespace athanor
