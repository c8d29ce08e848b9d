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

// Local index ranges of part `index` of `parts` along a length.
std::vector<Range> cut(int64_t length, int64_t parts, int64_t index, ShardPattern pattern) {
  const int64_t pieces = pattern == ShardPattern::zigzag ? 2 * parts : parts;
  const int64_t piece = ceiling(length, pieces);
  const auto nth = [&](int64_t i) {
    return Range{std::min(i * piece, length), std::min((i + 1) * piece, length)};
  };
  std::vector<Range> ranges{nth(index)};
  if (pattern == ShardPattern::zigzag) ranges.push_back(nth(pieces - 1 - index));
  std::erase_if(ranges, [](const Range& range) { return range.size() == 0; });
  return ranges;
}

// Maps ranges of the concatenation of `outer` to global indices.
std::vector<Range> compose(const std::vector<Range>& outer, const std::vector<Range>& inner) {
  std::vector<Range> result;
  for (const Range& wanted : inner) {
    int64_t start = 0;
    for (const Range& range : outer) {
      const int64_t begin = std::max(wanted.begin, start), end = std::min(wanted.end, start + range.size());
      if (begin < end) {
        const Range global{range.begin + begin - start, range.begin + end - start};
        if (!result.empty() && result.back().end == global.begin) {
          result.back().end = global.end;
        } else {
          result.push_back(global);
        }
      }
      start += range.size();
    }
  }
  return result;
}

int64_t parts_of(const Placement& placement, const Mesh& mesh, int axis) {
  const int64_t ranks = mesh.sizes[static_cast<size_t>(axis)];
  ATHANOR_ASSERT(placement.repeat >= 1 && ranks % placement.repeat == 0, "repeat {} on {} ranks",
                 placement.repeat, ranks);
  return ranks / placement.repeat;
}

}  // namespace

std::vector<std::vector<Range>> owned_ranges(const Shape& shape, const Placements& placements,
                                             const Mesh& mesh, const Coordinates& coordinates) {
  std::vector<std::vector<Range>> owned(static_cast<size_t>(shape.rank()));
  for (int dim = 0; dim < shape.rank(); ++dim) {
    auto& ranges = owned[static_cast<size_t>(dim)];
    if (shape[dim] > 0) ranges.push_back({0, shape[dim]});
    for (int axis = 0; axis < axis_count; ++axis) {
      const Placement& placement = placements[static_cast<size_t>(axis)];
      if (placement.kind != PlacementKind::shard || placement.dim != dim) continue;
      int64_t length = 0;
      for (const Range& range : ranges) length += range.size();
      const int64_t index = coordinates[static_cast<size_t>(axis)] / placement.repeat;
      ranges = compose(ranges, cut(length, parts_of(placement, mesh, axis), index, placement.pattern));
    }
  }
  return owned;
}

Shape storage_shape(const Shape& shape, const Placements& placements, const Mesh& mesh) {
  Shape stored = shape;
  for (int axis = 0; axis < axis_count; ++axis) {
    const Placement& placement = placements[static_cast<size_t>(axis)];
    if (placement.kind != PlacementKind::shard) continue;
    const int64_t parts = parts_of(placement, mesh, axis);
    const int64_t length = stored[placement.dim];
    stored.set(placement.dim, placement.pattern == ShardPattern::zigzag ? 2 * ceiling(length, 2 * parts)
                                                                        : ceiling(length, parts));
  }
  return stored;
}

const char* name_of(Axis axis) {
  static constexpr std::array<const char*, axis_count> names = {
      "pipeline", "replica", "shard", "context", "tensor", "expert_replica", "expert"};
  return names[static_cast<size_t>(axis)];
}

std::string to_text(const Placements& placements) {
  std::string text;
  for (int axis = 0; axis < axis_count; ++axis) {
    const Placement& placement = placements[static_cast<size_t>(axis)];
    if (placement.kind == PlacementKind::replicate) continue;
    text += fmt::format("{}{}:", text.empty() ? "" : ",", name_of(static_cast<Axis>(axis)));
    if (placement.kind == PlacementKind::partial) {
      text += placement.reduction == Reduction::sum ? "partial(sum)" : "partial(max)";
    } else {
      text += fmt::format("shard({}{}{})", placement.dim,
                          placement.pattern == ShardPattern::zigzag ? " zigzag" : "",
                          placement.repeat > 1 ? fmt::format(" repeat {}", placement.repeat) : "");
    }
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

// "shard(1 zigzag repeat 2)", "partial(max)"
std::optional<Placement> parse_placement(std::string_view& text) {
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
    if (accept(text, " repeat ") && (!parse_number(text, placement.repeat) || placement.repeat == 0)) {
      return std::nullopt;
    }
  } else {
    return std::nullopt;
  }
  if (!accept(text, ")")) return std::nullopt;
  return placement;
}

}  // namespace

std::optional<Placements> parse_placements(std::string_view text) {
  Placements placements;
  if (text.empty()) return placements;
  if (!accept(text, "{")) return std::nullopt;
  for (int axis = 0; axis < axis_count && !text.starts_with("}"); ++axis) {
    const std::string_view name = name_of(static_cast<Axis>(axis));
    if (!text.starts_with(name) || !text.substr(name.size()).starts_with(":")) continue;
    text.remove_prefix(name.size() + 1);
    const auto placement = parse_placement(text);
    if (!placement) return std::nullopt;
    placements[static_cast<size_t>(axis)] = *placement;
    if (!accept(text, ",")) break;
    if (text.starts_with("}")) return std::nullopt;
  }
  if (text != "}") return std::nullopt;
  return placements;
}

}  // namespace athanor
