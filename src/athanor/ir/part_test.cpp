#include "athanor/ir/part.h"

#include <gtest/gtest.h>

#include <numeric>

namespace athanor {
namespace {

Placement shard(int dim, uint32_t unit = 1, uint16_t repeat = 1) {
  return {.kind = PlacementKind::shard, .dim = static_cast<uint8_t>(dim), .repeat = repeat, .unit = unit};
}

Placement zigzag(int dim) {
  Placement placement = shard(dim);
  placement.pattern = ShardPattern::zigzag;
  return placement;
}

Mesh mesh_of_sizes(int32_t replica, int32_t shard, int32_t context, int32_t tensor) {
  Mesh mesh;
  mesh.sizes = {1, replica, shard, context, tensor, 1, 1};
  return mesh;
}

// The runs element by element from stored_ranges: what each element of the storage holds, or -1.
std::vector<int64_t> elements_of(const Shape& shape, const Placements& placements, const Mesh& mesh,
                                 const Coordinates& at) {
  std::vector<int64_t> elements{0};
  const auto stored = stored_ranges(shape, placements, mesh, at);
  for (int dim = 0; dim < shape.rank(); ++dim) {
    std::vector<int64_t> longer;
    for (const int64_t element : elements) {
      for (const Range& range : stored[static_cast<size_t>(dim)]) {
        for (int64_t index = range.begin; index < range.end; ++index) {
          longer.push_back(element < 0 || index >= shape[dim] ? -1 : element * shape[dim] + index);
        }
      }
    }
    elements = longer;
  }
  return elements;
}

void check_runs(const Shape& shape, const Placements& placements, const Mesh& mesh) {
  for (int32_t rank = 0; rank < mesh.ranks(); ++rank) {
    const Coordinates at = coordinates_of(mesh, rank);
    const auto runs = stored_runs(shape, placements, mesh, at);
    std::vector<int64_t> found(static_cast<size_t>(storage_shape(shape, placements, mesh).elements()), -1);
    for (size_t i = 0; i < runs.size(); ++i) {
      const StoredRun& run = runs[i];
      ASSERT_GT(run.length, 0);
      if (i > 0) {
        const StoredRun& before = runs[i - 1];
        ASSERT_GE(run.local_first, before.local_first + before.length);
        EXPECT_FALSE(run.local_first == before.local_first + before.length &&
                     run.global_first == before.global_first + before.length)
            << "two runs that are one";
      }
      ASSERT_LE(run.local_first + run.length, static_cast<int64_t>(found.size()));
      std::iota(found.begin() + run.local_first, found.begin() + run.local_first + run.length,
                run.global_first);
    }
    EXPECT_EQ(found, elements_of(shape, placements, mesh, at)) << to_text(placements) << " rank " << rank;
  }
}

TEST(StoredRuns, AreWhatStoredRangesSayElementByElement) {
  const Mesh mesh = mesh_of_sizes(1, 2, 2, 6);
  const Placement whole;
  for (const int64_t rows : {0, 1, 7, 13}) {
    for (const int64_t columns : {1, 5, 12}) {
      for (const Placement& outer : {whole, shard(0), zigzag(0), shard(1)}) {
        for (const Placement& context : {whole, zigzag(0), zigzag(1)}) {
          for (const Placement& tensor :
               {whole, shard(0), shard(0, 4), shard(1), shard(1, 3, 2), shard(0, 1, 3), shard(2)}) {
            Placements placements;
            placements[static_cast<size_t>(Axis::shard)] = outer;
            placements[static_cast<size_t>(Axis::context)] = context;
            placements[static_cast<size_t>(Axis::tensor)] = tensor;
            check_runs({rows, columns, 3}, placements, mesh);
          }
        }
      }
    }
  }
}

TEST(StoredRuns, WholeTensorsAndWholeRowsAreOneRun) {
  const Mesh mesh = mesh_of_sizes(2, 1, 1, 4);
  const auto runs = [&](const Placement& tensor, int32_t rank) {
    return stored_runs({10, 6}, placements_of(Axis::tensor, tensor), mesh, coordinates_of(mesh, rank));
  };
  EXPECT_EQ(runs({}, 5), (std::vector<StoredRun>{{0, 0, 60}}));
  EXPECT_EQ(runs(shard(0), 1), (std::vector<StoredRun>{{0, 18, 18}}));
  EXPECT_EQ(runs(shard(0), 3), (std::vector<StoredRun>{{0, 54, 6}})) << "the rest is padding";
  EXPECT_EQ(runs(zigzag(0), 3), (std::vector<StoredRun>{{0, 36, 24}})) << "pieces 3 and 4 are neighbours";
  EXPECT_EQ(runs(shard(1), 0).size(), 10U);
  EXPECT_EQ(runs(shard(1), 3), std::vector<StoredRun>{}) << "parts of 2 columns: nothing is left";
}

TEST(StoredRuns, AScalarIsOneElement) {
  EXPECT_EQ(stored_runs({}, {}, {}, {}), (std::vector<StoredRun>{{0, 0, 1}}));
}

TEST(StoredRuns, APartOfThemIsCountedFromItsBegin) {
  const std::vector<StoredRun> runs{{0, 100, 4}, {6, 200, 4}, {10, 300, 2}};
  EXPECT_EQ(part_of_runs(runs, 0, 12), runs);
  EXPECT_EQ(part_of_runs(runs, 2, 6), (std::vector<StoredRun>{{0, 102, 2}, {4, 200, 2}}));
  EXPECT_EQ(part_of_runs(runs, 4, 2), std::vector<StoredRun>{});
  EXPECT_EQ(part_of_runs(runs, 9, 50), (std::vector<StoredRun>{{0, 203, 1}, {1, 300, 2}}));
}

}  // namespace
}  // namespace athanor
