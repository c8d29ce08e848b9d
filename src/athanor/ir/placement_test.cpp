#include "athanor/ir/placement.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

constexpr int64_t lengths[] = {0, 1, 7, 50257};
constexpr int32_t parts_list[] = {1, 2, 3, 8};
constexpr ShardPattern patterns[] = {ShardPattern::contiguous, ShardPattern::zigzag};

// Calls `use` with the coordinates of every rank.
template <class Use>
void for_each_rank(const Mesh& mesh, const Use& use) {
  Coordinates at{};
  for (;;) {
    use(at);
    int axis = axis_count - 1;
    while (axis >= 0 && ++at[static_cast<size_t>(axis)] == mesh.sizes[static_cast<size_t>(axis)]) {
      at[static_cast<size_t>(axis--)] = 0;
    }
    if (axis < 0) return;
  }
}

int64_t size_of_ranges(const std::vector<Range>& ranges) {
  int64_t size = 0;
  for (const Range& range : ranges) size += range.size();
  return size;
}

// Each index of dim 0 is owned by exactly `owners` ranks, ranges ascend without touching, storage holds every
// rank's part.
void check_partition(int64_t length, const Placements& placements, const Mesh& mesh, int64_t owners) {
  const Shape shape{length, 2};
  const Shape storage = storage_shape(shape, placements, mesh);
  std::vector<int64_t> change(static_cast<size_t>(length) + 1, 0);
  for_each_rank(mesh, [&](const Coordinates& at) {
    const auto owned = owned_ranges(shape, placements, mesh, at);
    ASSERT_EQ(owned.size(), 2U);
    EXPECT_EQ(owned[1], (std::vector<Range>{{0, 2}}));
    int64_t last = -1;
    for (const Range& range : owned[0]) {
      ASSERT_GT(range.begin, last);
      ASSERT_GT(range.end, range.begin);
      ASSERT_LE(range.end, length);
      last = range.end;
      ++change[static_cast<size_t>(range.begin)];
      --change[static_cast<size_t>(range.end)];
    }
    ASSERT_LE(size_of_ranges(owned[0]), storage[0]);
  });
  int64_t count = 0;
  for (int64_t i = 0; i < length; ++i) {
    count += change[static_cast<size_t>(i)];
    ASSERT_EQ(count, owners) << "index " << i << " of " << length << " " << to_text(placements);
  }
}

void set(Placements& placements, Axis axis, Placement placement) {
  placements[static_cast<size_t>(axis)] = placement;
}
void set(Mesh& mesh, Axis axis, int32_t size) {
  mesh.sizes[static_cast<size_t>(axis)] = size;
}

TEST(Placement, OneAxisPartitionsEveryLength) {
  for (const int64_t length : lengths) {
    for (const int32_t parts : parts_list) {
      for (const ShardPattern pattern : patterns) {
        for (const uint16_t repeat : {uint16_t{1}, uint16_t{2}, uint16_t{3}}) {
          Mesh mesh;
          set(mesh, Axis::tensor, parts * repeat);
          set(mesh, Axis::replica, 2);
          Placements placements;
          set(placements, Axis::tensor,
              {.kind = PlacementKind::shard, .dim = 0, .pattern = pattern, .repeat = repeat});
          check_partition(length, placements, mesh, 2 * repeat);
          // Neighbours within `repeat` hold the same part.
          for_each_rank(mesh, [&](const Coordinates& at) {
            Coordinates first = at;
            auto& coordinate = first[static_cast<size_t>(Axis::tensor)];
            coordinate -= coordinate % repeat;
            EXPECT_EQ(owned_ranges({length, 2}, placements, mesh, at),
                      owned_ranges({length, 2}, placements, mesh, first));
          });
        }
      }
    }
  }
}

TEST(Placement, NestedAxesPartitionEveryLength) {
  for (const int64_t length : lengths) {
    for (const int32_t outer : parts_list) {
      for (const int32_t inner : parts_list) {
        for (const ShardPattern outer_pattern : patterns) {
          for (const ShardPattern inner_pattern : patterns) {
            for (const uint16_t repeat : {uint16_t{1}, uint16_t{2}}) {
              Mesh mesh;
              set(mesh, Axis::shard, outer);
              set(mesh, Axis::context, inner * repeat);
              set(mesh, Axis::pipeline, 2);
              Placements placements;
              set(placements, Axis::shard,
                  {.kind = PlacementKind::shard, .dim = 0, .pattern = outer_pattern});
              set(placements, Axis::context,
                  {.kind = PlacementKind::shard, .dim = 0, .pattern = inner_pattern, .repeat = repeat});
              set(placements, Axis::pipeline, {.kind = PlacementKind::partial});
              check_partition(length, placements, mesh, 2 * repeat);
            }
          }
        }
      }
    }
  }
}

TEST(Placement, ThreeAxesOnOneDimNestInMeshOrder) {
  Mesh mesh;
  set(mesh, Axis::replica, 2);
  set(mesh, Axis::shard, 3);
  set(mesh, Axis::tensor, 2);
  Placements placements;
  for (const Axis axis : {Axis::replica, Axis::shard, Axis::tensor}) {
    set(placements, axis, {.kind = PlacementKind::shard, .dim = 0});
  }
  for (const int64_t length : lengths) check_partition(length, placements, mesh, 1);
  // 26 = 13 + 13; 13 is stored as 5 + 5 + 5, of which two are padding; 5 as 3 + 3, of which one is.
  Coordinates at{};
  at[static_cast<size_t>(Axis::replica)] = 1;
  at[static_cast<size_t>(Axis::shard)] = 2;
  at[static_cast<size_t>(Axis::tensor)] = 1;
  EXPECT_EQ(owned_ranges({26}, placements, mesh, at)[0], (std::vector<Range>{}));
  EXPECT_EQ(stored_ranges({26}, placements, mesh, at)[0].front().begin, 26);
  at[static_cast<size_t>(Axis::tensor)] = 0;
  EXPECT_EQ(owned_ranges({26}, placements, mesh, at)[0], (std::vector<Range>{{23, 26}}));
  EXPECT_EQ(storage_shape({26}, placements, mesh), Shape({3}));
}

TEST(Placement, AxesOnDifferentDimsCutBoth) {
  Mesh mesh;
  set(mesh, Axis::context, 2);
  set(mesh, Axis::tensor, 3);
  Placements placements;
  set(placements, Axis::context, {.kind = PlacementKind::shard, .dim = 1, .pattern = ShardPattern::zigzag});
  set(placements, Axis::tensor, {.kind = PlacementKind::shard, .dim = 0});
  std::vector<int> owners(7 * 9, 0);
  for_each_rank(mesh, [&](const Coordinates& at) {
    const auto owned = owned_ranges({7, 9}, placements, mesh, at);
    for (const Range& rows : owned[0]) {
      for (const Range& columns : owned[1]) {
        for (int64_t row = rows.begin; row < rows.end; ++row) {
          for (int64_t column = columns.begin; column < columns.end; ++column) {
            ++owners[static_cast<size_t>(row * 9 + column)];
          }
        }
      }
    }
  });
  EXPECT_EQ(owners, std::vector<int>(7 * 9, 1));
  EXPECT_EQ(storage_shape({7, 9}, placements, mesh), Shape({3, 6}));
}

TEST(Placement, TrailingPartsMayBeShortOrEmpty) {
  Mesh mesh;
  set(mesh, Axis::shard, 8);
  Placements placements;
  set(placements, Axis::shard, {.kind = PlacementKind::shard, .dim = 0});
  for (int32_t rank = 0; rank < 8; ++rank) {
    Coordinates at{};
    at[static_cast<size_t>(Axis::shard)] = rank;
    const auto owned = owned_ranges({7}, placements, mesh, at)[0];
    EXPECT_EQ(owned, rank < 7 ? (std::vector<Range>{{rank, rank + 1}}) : std::vector<Range>{});
  }
}

TEST(Placement, ZigzagPairsEarlyWithLatePieces) {
  Mesh mesh;
  set(mesh, Axis::context, 2);
  Placements placements;
  set(placements, Axis::context, {.kind = PlacementKind::shard, .dim = 0, .pattern = ShardPattern::zigzag});
  Coordinates at{};
  EXPECT_EQ(owned_ranges({16}, placements, mesh, at)[0], (std::vector<Range>{{0, 4}, {12, 16}}));
  at[static_cast<size_t>(Axis::context)] = 1;
  EXPECT_EQ(owned_ranges({16}, placements, mesh, at)[0], (std::vector<Range>{{4, 12}}));
}

TEST(Placement, StorageIsTheCeilingOfEveryCut) {
  for (const int64_t length : lengths) {
    for (const int32_t outer : parts_list) {
      for (const int32_t inner : parts_list) {
        Mesh mesh;
        set(mesh, Axis::shard, outer);
        set(mesh, Axis::tensor, inner);
        Placements placements;
        set(placements, Axis::shard, {.kind = PlacementKind::shard, .dim = 0});
        set(placements, Axis::tensor, {.kind = PlacementKind::shard, .dim = 0});
        const int64_t half = length / outer + (length % outer != 0 ? 1 : 0);
        EXPECT_EQ(storage_shape({length}, placements, mesh)[0], half / inner + (half % inner != 0 ? 1 : 0));
        // The first rank's part is as large as storage: nothing is padded that need not be.
        EXPECT_EQ(size_of_ranges(owned_ranges({length}, placements, mesh, {})[0]),
                  storage_shape({length}, placements, mesh)[0]);
      }
    }
  }
}

TEST(Placement, StoredRangesFillStorageAndAgreeWithOwnedOnes) {
  for (const int64_t length : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{60}}) {
    for (const int32_t outer : parts_list) {
      for (const int32_t later : parts_list) {
        for (const uint32_t unit : {1U, 2U, 5U}) {
          for (const bool inner : {false, true}) {
            Mesh mesh;
            set(mesh, Axis::context, outer);
            set(mesh, Axis::tensor, later);
            Placements placements;
            set(placements, Axis::context,
                {.kind = PlacementKind::shard, .dim = 0, .unit = unit, .inner = inner});
            set(placements, Axis::tensor, {.kind = PlacementKind::shard, .dim = 0, .unit = unit});
            check_partition(length, placements, mesh, 1);
            for_each_rank(mesh, [&](const Coordinates& at) {
              const auto stored = stored_ranges({length}, placements, mesh, at)[0];
              EXPECT_EQ(size_of_ranges(stored), storage_shape({length}, placements, mesh)[0]);
              int64_t real = 0;
              for (const Range& range : stored) {
                real += std::max<int64_t>(0, std::min(range.end, length) - range.begin);
              }
              EXPECT_EQ(real, size_of_ranges(owned_ranges({length}, placements, mesh, at)[0]));
            });
          }
        }
      }
    }
  }
}

// Five heads of four features over three ranks: two heads each, the last rank has one and padding.
TEST(Placement, UnitsAreNeverTornApart) {
  Mesh mesh;
  set(mesh, Axis::tensor, 3);
  Placements placements;
  set(placements, Axis::tensor, {.kind = PlacementKind::shard, .dim = 0, .unit = 4});
  EXPECT_EQ(storage_shape({20}, placements, mesh), Shape({8}));
  Coordinates at{};
  EXPECT_EQ(owned_ranges({20}, placements, mesh, at)[0], (std::vector<Range>{{0, 8}}));
  at[static_cast<size_t>(Axis::tensor)] = 2;
  EXPECT_EQ(owned_ranges({20}, placements, mesh, at)[0], (std::vector<Range>{{16, 20}}));
  EXPECT_EQ(stored_ranges({20}, placements, mesh, at)[0], (std::vector<Range>{{16, 24}}));
}

TEST(Placement, AnInnerAxisCutsWhatALaterAxisLeft) {
  Mesh mesh;
  set(mesh, Axis::context, 2);
  set(mesh, Axis::tensor, 2);
  Placements placements;
  set(placements, Axis::context, {.kind = PlacementKind::shard, .dim = 0, .inner = true});
  set(placements, Axis::tensor, {.kind = PlacementKind::shard, .dim = 0});
  Coordinates at{};
  at[static_cast<size_t>(Axis::tensor)] = 1;
  EXPECT_EQ(owned_ranges({8}, placements, mesh, at)[0], (std::vector<Range>{{4, 6}}));
  at[static_cast<size_t>(Axis::context)] = 1;
  EXPECT_EQ(owned_ranges({8}, placements, mesh, at)[0], (std::vector<Range>{{6, 8}}));
}

TEST(Placement, RanksAreNumberedInMeshOrderTensorFastest) {
  Mesh mesh;
  mesh.sizes = {2, 3, 1, 2, 4, 1, 1};
  EXPECT_EQ(mesh.ranks(), 48);
  int32_t rank = 0;
  for_each_rank(mesh, [&](const Coordinates& at) {
    EXPECT_EQ(coordinates_of(mesh, rank), at);
    EXPECT_EQ(rank_of(mesh, at), rank);
    ++rank;
  });
  EXPECT_EQ(rank, 48);
}

TEST(Placement, OnePlacementParsesBack) {
  for (const char* text : {"replicate", "partial(sum)", "partial(max)", "shard(0)", "shard(2 zigzag)",
                           "shard(1 zigzag unit 4 repeat 2 partial inner)", "shard(1 inner)"}) {
    const auto placement = parse_placement(text);
    ASSERT_TRUE(placement.has_value()) << text;
    EXPECT_EQ(to_text(*placement), text);
  }
  for (const char* text :
       {"", "shard", "shard(1) ", "shard(1 unit 0)", "shard(1 inner partial)", "partial()"}) {
    EXPECT_EQ(parse_placement(text), std::nullopt) << text;
  }
}

TEST(Placement, TextParsesBack) {
  Placements placements;
  EXPECT_EQ(to_text(placements), "");
  EXPECT_EQ(parse_placements(""), placements);
  set(placements, Axis::tensor, {.kind = PlacementKind::shard, .dim = 1});
  EXPECT_EQ(to_text(placements), "{tensor:shard(1)}");
  set(placements, Axis::context,
      {.kind = PlacementKind::shard, .dim = 2, .pattern = ShardPattern::zigzag, .repeat = 4});
  set(placements, Axis::expert_replica, {.kind = PlacementKind::partial});
  set(placements, Axis::expert, {.kind = PlacementKind::partial, .reduction = Reduction::max});
  EXPECT_EQ(
      to_text(placements),
      "{context:shard(2 zigzag repeat 4),tensor:shard(1),expert_replica:partial(sum),expert:partial(max)}");
  EXPECT_EQ(parse_placements(to_text(placements)), placements);
}

TEST(Placement, OtherTextIsRefused) {
  for (const char* text : {"{", "}", "tensor:shard(1)", "{tensor}", "{tensor:shard}", "{tensor:shard(}",
                           "{tensor:shard(1}", "{tensor:shard(9)}", "{tensor:shard(1 repeat 0)}",
                           "{tensor:shard(1 repeat 99999)}", "{tensor:partial(min)}", "{tensor:shard(1),}",
                           "{tensor:shard(1),context:shard(0)}", "{sensor:shard(1)}", "{tensor:shard(1)}x"}) {
    EXPECT_EQ(parse_placements(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace athanor
