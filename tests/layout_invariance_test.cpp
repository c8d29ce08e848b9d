// Layout invariance of engines: the losses, gradient norms and weights of a run on several ranks are those of
// one rank. layout_invariance_slow_test.cpp has every layout, training_on_ranks_test.cpp the training loop
// and ranks in processes.

#include <gtest/gtest.h>

#include "support/layout_cases.h"

namespace athanor {
namespace {

class Layouts : public testing::TestWithParam<LayoutCase> {};

TEST_P(Layouts, GiveTheNumbersOfOneRank) {
  const RunPlan plan = plan_of(GetParam(), Precision::fp64);
  expect_same(run_ranks(one_rank(plan)), run_ranks(plan), {1e-12, 1e-12, 1e-12});
}

INSTANTIATE_TEST_SUITE_P(Pairwise, Layouts, testing::ValuesIn(pairwise_layouts()));

// One of each kind by itself, where a fault is easiest to see.
INSTANTIATE_TEST_SUITE_P(
    Single, Layouts,
    testing::Values(LayoutCase{.replica = 2}, LayoutCase{.shard = 2}, LayoutCase{.shard = 2, .zero_stage = 1},
                    LayoutCase{.shard = 2, .zero_stage = 2}, LayoutCase{.shard = 2, .zero_stage = 3},
                    LayoutCase{.tensor = 2}, LayoutCase{.tensor = 3, .sequence_parallel = true},
                    LayoutCase{.context = 2, .family = "llama"},
                    LayoutCase{.context = 2, .form = ContextForm::all_to_all},
                    LayoutCase{.shard = 2, .context = 2, .tensor = 2, .zero_stage = 2, .family = "llama"}));

TEST(PairwiseLayouts, AreFewAndHaveEveryPair) {
  const std::vector<LayoutCase> layouts = pairwise_layouts();
  EXPECT_LE(layouts.size(), 30U);
  int stage_3_on_context = 0, most = 0;
  for (const LayoutCase& layout : layouts) {
    stage_3_on_context += layout.zero_stage == 3 && layout.context == 2 ? 1 : 0;
    most = std::max(most, layout.ranks());
  }
  EXPECT_GE(stage_3_on_context, 1);
  EXPECT_LE(most, 8);
}

// In fp32 and bf16 sums in another order round otherwise. The bounds are those of docs/sharding.md.
class NarrowLayouts : public testing::TestWithParam<LayoutCase> {};

TEST_P(NarrowLayouts, StayWithinTheStatedBounds) {
  for (const auto& [precision, tolerance] : {std::pair{Precision::fp32, Tolerance{1e-6, 1e-5, 1e-4}},
                                             std::pair{Precision::bf16, Tolerance{1e-2, 5e-2, 5e-2}}}) {
    SCOPED_TRACE(precision == Precision::fp32 ? "fp32" : "bf16");
    const RunPlan plan = plan_of(GetParam(), precision);
    expect_same(run_ranks(one_rank(plan)), run_ranks(plan), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , NarrowLayouts,
    testing::Values(LayoutCase{.replica = 2, .shard = 2, .zero_stage = 1},
                    LayoutCase{.shard = 4, .zero_stage = 3, .family = "llama"}, LayoutCase{.tensor = 4},
                    LayoutCase{.tensor = 2, .sequence_parallel = true, .family = "llama"},
                    LayoutCase{.context = 4, .family = "llama"},
                    LayoutCase{.shard = 2, .context = 2, .tensor = 2, .zero_stage = 2}));

}  // namespace
}  // namespace athanor
