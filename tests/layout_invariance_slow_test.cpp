// Layout invariance on every mesh of up to 8 ranks, with every stage and form.

#include <gtest/gtest.h>

#include "support/layout_cases.h"

namespace athanor {
namespace {

class AllLayouts : public testing::TestWithParam<LayoutCase> {};

TEST_P(AllLayouts, GiveTheNumbersOfOneRank) {
  const RunPlan plan = plan_of(GetParam(), Precision::fp64);
  expect_same(run_ranks(one_rank(plan)), run_ranks(plan), bounds_of(Precision::fp64));
}

INSTANTIATE_TEST_SUITE_P(Grid, AllLayouts, testing::ValuesIn(all_layouts()));

}  // namespace
}  // namespace athanor
