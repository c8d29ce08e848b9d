#include "athanor/model/layout.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"

namespace athanor {
namespace {

TEST(Layout, HeadsAreHandedOutInWholeGroups) {
  struct Case {
    int64_t groups, queries;
    int32_t ranks, repeat, unit;
  };
  for (const Case& c : {Case{8, 1, 4, 1, 1}, Case{2, 2, 4, 2, 1}, Case{1, 6, 3, 3, 2}, Case{2, 3, 4, 1, 3},
                        Case{3, 2, 2, 1, 2}, Case{1, 4, 8, 4, 1}}) {
    const HeadCut cut = head_cut(c.groups, c.queries, c.ranks);
    EXPECT_EQ(cut.repeat, c.repeat) << c.groups << " " << c.queries << " " << c.ranks;
    EXPECT_EQ(cut.query_unit, static_cast<uint32_t>(c.unit));
  }
}

// On every rank the query heads are those of the key heads beside them.
TEST(Layout, QueriesLieBesideTheirKeys) {
  for (int64_t groups = 1; groups <= 6; ++groups) {
    for (int64_t queries = 1; queries <= 6; ++queries) {
      for (int32_t ranks = 1; ranks <= 12; ++ranks) {
        const HeadCut cut = head_cut(groups, queries, ranks);
        const Mesh mesh = mesh_of(Axis::tensor, ranks);
        const auto place = [&](uint32_t unit, uint16_t repeat) {
          return placements_of(Axis::tensor,
                               {.kind = PlacementKind::shard, .dim = 0, .repeat = repeat, .unit = unit});
        };
        const Placements query = place(cut.query_unit, 1), key = place(1, cut.repeat);
        const int64_t heads = storage_shape({groups * queries}, query, mesh)[0];
        const int64_t keys = storage_shape({groups}, key, mesh)[0];
        ASSERT_EQ(heads % keys, 0);
        for (int32_t rank = 0; rank < ranks; ++rank) {
          Coordinates at{};
          at[static_cast<size_t>(Axis::tensor)] = rank;
          const auto my_heads = owned_ranges({groups * queries}, query, mesh, at)[0];
          const auto my_keys = owned_ranges({groups}, key, mesh, at)[0];
          if (my_heads.empty()) continue;
          ASSERT_EQ(my_keys.size(), 1U);
          for (int64_t h = my_heads[0].begin; h < my_heads[0].end; ++h) {
            EXPECT_EQ(my_keys[0].begin + (h - my_heads[0].begin) / (heads / keys), h / queries)
                << groups << " groups of " << queries << " on " << ranks;
          }
        }
      }
    }
  }
}

LayoutOptions on(int32_t context, int32_t tensor, bool sequence_parallel = false) {
  LayoutOptions options;
  options.mesh.sizes[static_cast<size_t>(Axis::context)] = context;
  options.mesh.sizes[static_cast<size_t>(Axis::tensor)] = tensor;
  options.sequence_parallel = sequence_parallel;
  return options;
}

TEST(Layout, SequencesFillEqualPieces) {
  EXPECT_EQ(sequence_granule(on(1, 1)), 1);
  EXPECT_EQ(sequence_granule(on(1, 4)), 1);
  EXPECT_EQ(sequence_granule(on(1, 4, true)), 4);
  EXPECT_EQ(sequence_granule(on(3, 1)), 6);
  EXPECT_EQ(sequence_granule(on(3, 2, true)), 6);
  EXPECT_EQ(sequence_granule(on(2, 3, true)), 12);
}

TEST(Layout, NamesOfOneLayerAreThoseOfAll) {
  const Layout layout = layout_of(family_defaults("gpt2"), on(1, 2));
  const Placements& whole = layout.of_parameter("block.{layer}.mlp.up.weight");
  EXPECT_EQ(to_text(whole), "{tensor:shard(0)}");
  EXPECT_EQ(layout.of_parameter("block.11.mlp.up.weight"), whole);
  EXPECT_EQ(to_text(layout.of_parameter("block.11.mlp_norm.weight")), "");
  EXPECT_EQ(to_text(layout.of_parameter("block.0.mlp.down.weight")), "{tensor:shard(1)}");
  EXPECT_EQ(to_text(layout.of_parameter("block.0.attention.query.weight")), "{tensor:shard(0 unit 64)}");
  EXPECT_EQ(to_text(layout.of_parameter("final_norm.weight")), "");
  EXPECT_EQ(to_text(layout.of_parameter("embedding.token.weight")), "{tensor:shard(0)}");
}

TEST(Layout, PaddedHeadsNeedAnEpsilonInTheirNorms) {
  ModelConfig config = family_defaults("llama");
  config.heads = 4;
  config.query_key_norm = true;
  config.norm_epsilon = 0;
  EXPECT_NO_THROW(layout_of(config, on(1, 4)));
  EXPECT_THROW(layout_of(config, on(1, 3)), Error);
  config.norm_epsilon = 1e-6;
  EXPECT_NO_THROW(layout_of(config, on(1, 3)));
}

}  // namespace
}  // namespace athanor
