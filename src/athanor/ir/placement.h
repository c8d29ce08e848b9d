// The mesh of ranks and the placement of a tensor on it: the one notion behind every kind of parallelism.
//
// Called by model layouts, the compiler, checkpoints. Thread safety: values and pure functions.
// "Axis" is always a mesh axis, "dim" always a tensor dimension. `owned_ranges` is the only function that
// divides sizes; storage pads to its ceiling, logical extents never do.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/ir/shape.h"

namespace athanor {

// In mesh order: the outermost (slowest) first, so that tensor groups are neighbours.
enum class Axis : uint8_t { pipeline, replica, shard, context, tensor, expert_replica, expert };
inline constexpr int axis_count = 7;

// The size of each axis. The expert axes are a second view of the ranks of replica x shard x context.
struct Mesh {
  std::array<int32_t, axis_count> sizes{1, 1, 1, 1, 1, 1, 1};
  int32_t size(Axis axis) const { return sizes[static_cast<size_t>(axis)]; }
  // Of pipeline x replica x shard x context x tensor.
  int64_t ranks() const;
  // Those that have samples of their own: replica x shard.
  int64_t data_ranks() const;
  friend bool operator==(const Mesh&, const Mesh&) = default;
};

using Coordinates = std::array<int32_t, axis_count>;
inline int32_t coordinate(const Coordinates& at, Axis axis) {
  return at[static_cast<size_t>(axis)];
}

// Ranks are numbered in mesh order, axis tensor fastest. The coordinates on the expert axes are 0.
Coordinates coordinates_of(const Mesh& mesh, int32_t rank);
int32_t rank_of(const Mesh& mesh, const Coordinates& coordinates);

enum class PlacementKind : uint8_t { replicate, shard, partial };
// zigzag: part i of n holds pieces i and 2n-1-i of 2n, which balances causal attention.
enum class ShardPattern : uint8_t { contiguous, zigzag };
enum class Reduction : uint8_t { sum, max };

// What a tensor is along one axis. Thread safety: value.
struct Placement {
  PlacementKind kind = PlacementKind::replicate;
  uint8_t dim = 0;                                  // shard
  ShardPattern pattern = ShardPattern::contiguous;  // shard
  uint16_t repeat = 1;                              // shard: this many neighbours hold the same part
  uint32_t unit = 1;                     // shard: only whole groups of this many elements are handed out
  bool repeats_partial = false;          // shard: what the neighbours of a repeat hold must still be summed
  bool inner = false;                    // shard: cuts what all other axes left, the later ones too
  Reduction reduction = Reduction::sum;  // partial
  friend bool operator==(const Placement&, const Placement&) = default;
};

using Placements = std::array<Placement, axis_count>;

// A mesh of one axis, and what cuts a tensor along one axis alone.
Mesh mesh_of(Axis axis, int32_t ranks);
Placements placements_of(Axis axis, const Placement& placement);

struct Range {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
  friend bool operator==(const Range&, const Range&) = default;
};

// For each dim, the ascending, disjoint global index ranges that the rank at `coordinates` holds. Axes that
// shard the same dim nest in mesh order (those marked `inner` last): the later axis cuts the storage that the
// earlier one left. Part i of n of a storage of L elements is [i*c, (i+1)*c), where c is ceil(L/n) rounded up
// to whole units; what lies beyond the length is no index: trailing parts may be short or empty.
std::vector<std::vector<Range>> owned_ranges(const Shape& shape, const Placements& placements,
                                             const Mesh& mesh, const Coordinates& coordinates);

// For each dim, which global index each element of the rank's storage holds, as ranges in the order of
// storage: their sizes add up to storage_shape. Indices at or beyond the length are padding.
std::vector<std::vector<Range>> stored_ranges(const Shape& shape, const Placements& placements,
                                              const Mesh& mesh, const Coordinates& coordinates);

// The shape that storage of any rank's part has: the ceiling, equal on all ranks.
Shape storage_shape(const Shape& shape, const Placements& placements, const Mesh& mesh);

const char* name_of(Axis axis);
std::optional<Axis> parse_axis(std::string_view text);
std::string to_text(
    const Placements& placements);  // "" when replicated on all axes, else "{tensor:shard(1)}"
std::optional<Placements> parse_placements(std::string_view text);  // the inverse; nothing for other text
std::string to_text(const Placement& placement);  // "replicate", "shard(1 zigzag)", "partial(max)"
std::optional<Placement> parse_placement(std::string_view text);

}  // namespace athanor
