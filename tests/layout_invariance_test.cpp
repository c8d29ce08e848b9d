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
  expect_same(run_ranks(one_rank(plan)), run_ranks(plan), bounds_of(Precision::fp64));
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

// In narrow types sums in another order round otherwise, within the bounds of docs/sharding.md: on the
// kernels that say what is right, and on those that runs use.
class NarrowLayouts : public testing::TestWithParam<LayoutCase> {};

TEST_P(NarrowLayouts, StayWithinTheStatedBounds) {
  for (const KernelSet kernels : {KernelSet::reference, KernelSet::cpu}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      SCOPED_TRACE(name_of(precision, kernels));
      const RunPlan plan = plan_of(GetParam(), precision, kernels);
      expect_same(run_ranks(one_rank(plan)), run_ranks(plan), bounds_of(precision));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    , NarrowLayouts,
    testing::Values(LayoutCase{.replica = 2, .shard = 2, .zero_stage = 1},
                    LayoutCase{.shard = 4, .zero_stage = 3, .family = "llama"}, LayoutCase{.tensor = 4},
                    LayoutCase{.tensor = 2, .sequence_parallel = true, .family = "llama"},
                    LayoutCase{.context = 4, .family = "llama"},
                    LayoutCase{.shard = 2, .context = 2, .tensor = 2, .zero_stage = 2}));

// The two sets of kernels give the same run, alone and on ranks.
TEST(Kernels, AgreeInEveryLayout) {
  for (const LayoutCase& layout :
       {LayoutCase{}, LayoutCase{.family = "llama"}, LayoutCase{.context = 2, .tensor = 3},
        LayoutCase{.shard = 3, .tensor = 2, .zero_stage = 3, .sequence_parallel = true, .family = "llama"}}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      SCOPED_TRACE(to_text(layout) + ", " + name_of(precision, KernelSet::cpu));
      expect_same(run_ranks(plan_of(layout, precision, KernelSet::reference)),
                  run_ranks(plan_of(layout, precision, KernelSet::cpu)), bounds_of(precision));
    }
  }
}

// How a rank cuts its work among threads changes no bit of any rank.
TEST(Kernels, ThreadsOfRanksChangeNoBit) {
  for (const LayoutCase& layout : {LayoutCase{.shard = 2, .context = 2, .zero_stage = 2, .family = "llama"},
                                   LayoutCase{.tensor = 3, .sequence_parallel = true}}) {
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      SCOPED_TRACE(to_text(layout) + ", " + name_of(precision, KernelSet::cpu));
      RunPlan plan = plan_of(layout, precision, KernelSet::cpu);
      const RankRun one = run_ranks(plan);
      plan.threads = 3;
      expect_same_bits(one, run_ranks(plan));
    }
  }
}

}  // namespace
}  // namespace athanor
