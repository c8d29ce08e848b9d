#include "athanor/comm/algorithm.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/comm/comm_test_support.h"
#include "athanor/comm/plan_check.h"

namespace athanor {
namespace {

std::vector<Plan> plans_of(const std::vector<CollectiveSpec>& specs, const GroupShape& group) {
  std::vector<Plan> plans;
  for (int member = 0; member < group.members(); ++member) {
    const CollectiveSpec& spec = specs[static_cast<size_t>(member)];
    check_collective(spec, group.members(), member);
    plans.push_back(plan_collective(spec, group, member));
  }
  return plans;
}

void expect_proven(const std::vector<CollectiveSpec>& specs, const GroupShape& group) {
  const std::vector<Plan> plans = plans_of(specs, group);
  const CollectiveKind kind = specs[0].kind;
  for (const bool in_place : {false, true}) {
    if (in_place && kind != CollectiveKind::all_reduce && kind != CollectiveKind::all_gather &&
        kind != CollectiveKind::reduce_scatter && kind != CollectiveKind::broadcast)
      continue;
    EXPECT_EQ(find_plan_fault(specs, plans, in_place), "")
        << name_of(kind) << " by " << name_of(plans[0].algorithm) << ", " << group.members()
        << " members, counts " << testing::PrintToString(specs[0].counts) << (in_place ? ", in place" : "");
  }
}

std::vector<GroupShape> shapes_of(int members) {
  std::vector<GroupShape> shapes{one_host(members), one_member_per_host(members)};
  for (int hosts = 2; hosts < members; ++hosts) {
    if (members % hosts != 0) continue;
    GroupShape blocks{std::vector<int>(static_cast<size_t>(members))};
    for (int m = 0; m < members; ++m) blocks.hosts[static_cast<size_t>(m)] = m / (members / hosts);
    shapes.push_back(blocks);
    GroupShape dealt{std::vector<int>(static_cast<size_t>(members))};
    for (int m = 0; m < members; ++m) dealt.hosts[static_cast<size_t>(m)] = m % hosts;
    shapes.push_back(dealt);
  }
  if (members > 2) {
    GroupShape uneven = one_host(members);
    uneven.hosts[0] = 1;
    shapes.push_back(uneven);
  }
  return shapes;
}

TEST(Algorithm, EveryPlanIsProven) {
  for (const int members : {1, 2, 3, 4, 5, 6, 7, 8, 9, 16}) {
    for (const GroupShape& group : shapes_of(members))
      for (int algorithm = 0; algorithm < algorithm_count; ++algorithm)
        for (int kind = 0; kind <= static_cast<int>(CollectiveKind::broadcast); ++kind)
          for (const int64_t count :
               members > 6 ? std::vector<int64_t>{23} : std::vector<int64_t>{0, 1, 7, 23})
            expect_proven(example_specs(static_cast<CollectiveKind>(kind), members, count,
                                        static_cast<Algorithm>(algorithm), count % 2 == 0 ? 0 : members / 2),
                          group);
  }
}

// With a wire type of its own and with types that are summed in a wider one.
TEST(Algorithm, EveryPlanIsProvenForNarrowTypes) {
  for (const int members : {1, 2, 3, 6})
    for (const GroupShape& group : shapes_of(members))
      for (int algorithm = 0; algorithm < algorithm_count; ++algorithm)
        for (int kind = 0; kind <= static_cast<int>(CollectiveKind::broadcast); ++kind)
          for (const auto& [dtype, wire] : {std::pair{DType::fp32, DType::bf16},
                                            {DType::bf16, DType::bf16},
                                            {DType::fp64, DType::fp32},
                                            {DType::int32, DType::int32}}) {
            auto specs = example_specs(static_cast<CollectiveKind>(kind), members, 11,
                                       static_cast<Algorithm>(algorithm), members - 1);
            for (CollectiveSpec& spec : specs) {
              spec.dtype = dtype;
              spec.wire = wire;
            }
            expect_proven(specs, group);
          }
}

// Enough elements that blocks are cut into pieces.
TEST(Algorithm, LongBlocksTravelInPieces) {
  for (const Algorithm algorithm : {Algorithm::ring, Algorithm::double_tree}) {
    const int64_t count = 150'001;
    auto specs = example_specs(CollectiveKind::all_reduce, 3, count, algorithm, 0);
    for (CollectiveSpec& spec : specs) spec.dtype = spec.wire = DType::fp64;
    const std::vector<Plan> plans = plans_of(specs, one_member_per_host(3));
    EXPECT_EQ(find_plan_fault(specs, plans, true), "") << name_of(algorithm);
    int64_t largest = 0;
    for (const Step& step : plans[1].steps) largest = std::max(largest, step.region.count);
    EXPECT_LT(largest, count / 3 - 100);
  }
}

// Between two members nothing travels that need not.
TEST(Algorithm, SendsNoMoreThanItMust) {
  const auto bytes_sent = [](const Plan& plan) {
    int64_t bytes = 0;
    for (const Step& step : plan.steps)
      bytes += step.region.bytes() * (step.kind == StepKind::send ? 1 : step.readers);
    return bytes;
  };
  const int64_t count = 8 << 10;
  for (const int n : {2, 4, 8}) {
    for (const Algorithm algorithm : {Algorithm::ring, Algorithm::direct, Algorithm::halving_doubling}) {
      const auto specs = example_specs(CollectiveKind::all_reduce, n, count, algorithm, 0);
      for (const Plan& plan : plans_of(specs, one_member_per_host(n)))
        EXPECT_EQ(bytes_sent(plan), 2 * (n - 1) * count / n * 4) << n << " " << name_of(algorithm);
    }
  }
}

TEST(Algorithm, IsChosenBySizeAndHosts) {
  const auto chosen = [](CollectiveKind kind, int64_t count, const GroupShape& group,
                         DType wire = DType::fp32) {
    CollectiveSpec spec = example_specs(kind, group.members(), count, Algorithm::automatic, 0)[0];
    spec.wire = wire;
    return choose_algorithm(spec, group);
  };
  using enum Algorithm;
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 1024, one_host(4)), one_shot);
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 4 << 20, one_host(4)), direct);
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 4 << 20, {{0, 0, 1, 1}}), hierarchical);
  EXPECT_EQ(chosen(CollectiveKind::reduce_scatter, 4 << 20, {{0, 0, 1, 1}}), hierarchical);
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 4 << 20, one_member_per_host(4)), ring);
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 4 << 20, {{0, 0, 1, 1, 1}}), ring);
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 8 << 10, one_member_per_host(64)), double_tree);
  EXPECT_EQ(chosen(CollectiveKind::all_gather, 8 << 10, one_member_per_host(64)), halving_doubling);
  EXPECT_EQ(chosen(CollectiveKind::all_reduce, 4 << 20, one_member_per_host(4), DType::bf16), direct);
  EXPECT_EQ(chosen(CollectiveKind::all_to_all, 4 << 20, {{0, 0, 1, 1}}), direct);
}

// 512 members of 1.0 each with bf16 on the wire. A sum that is rounded on its way sticks at 256.
TEST(Algorithm, P35_NarrowWireDoesNotGetWorseWithMoreRanks) {
  for (const Algorithm algorithm :
       {Algorithm::automatic, Algorithm::one_shot, Algorithm::direct, Algorithm::ring,
        Algorithm::halving_doubling, Algorithm::double_tree, Algorithm::hierarchical}) {
    GroupShape group{std::vector<int>(512)};
    for (int m = 0; m < 512; ++m) group.hosts[static_cast<size_t>(m)] = m / 8;
    for (const DType dtype : {DType::fp32, DType::bf16}) {
      if (dtype == DType::fp32 && algorithm != Algorithm::automatic && algorithm != Algorithm::ring) continue;
      auto specs = example_specs(CollectiveKind::all_reduce, 512, 3, algorithm, 0);
      std::vector<std::vector<std::byte>> inputs;
      for (CollectiveSpec& spec : specs) {
        spec.dtype = dtype;
        spec.wire = DType::bf16;
        inputs.push_back(encode(dtype, {1.0, 1.0, 0.0}));
      }
      const auto outputs = run_in_lockstep(specs, group, inputs);
      for (const auto& output : outputs)
        ASSERT_EQ(decode(dtype, output), (std::vector<double>{512, 512, 0})) << name_of(algorithm);
    }
  }
}

TEST(Algorithm, PartsAreAlignedAndCoverAll) {
  for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{50257}})
    for (const int parts : {1, 3, 8}) {
      const std::vector<int64_t> sizes = equal_parts(count, parts, 16);
      EXPECT_EQ(std::accumulate(sizes.begin(), sizes.end(), int64_t{0}), count);
      for (size_t i = 0; i + 1 < sizes.size(); ++i) EXPECT_TRUE(sizes[i] % 16 == 0 || sizes[i + 1] == 0);
    }
}

// What the proof must refuse.
TEST(PlanCheck, FindsFaults) {
  const GroupShape group = one_host(3);
  const auto fault_of = [&](Algorithm algorithm, auto change) {
    const auto specs = example_specs(CollectiveKind::all_reduce, 3, 60, algorithm, 0);
    auto plans = plans_of(specs, group);
    change(plans);
    return find_plan_fault(specs, plans, true);
  };
  using enum Algorithm;
  EXPECT_EQ(fault_of(ring, [](auto&) {}), "");
  EXPECT_NE(fault_of(ring, [](auto& plans) { plans[1].steps.pop_back(); }), "");
  EXPECT_NE(fault_of(ring, [](auto& plans) { plans[1].steps[0].region.count -= 1; }), "");
  EXPECT_NE(fault_of(ring, [](auto& plans) { plans[1].steps[0].region.offset += 4; }), "");
  EXPECT_NE(fault_of(ring, [](auto& plans) { std::swap(plans[2].steps.front(), plans[2].steps.back()); }),
            "");
  EXPECT_NE(fault_of(one_shot, [](auto& plans) { std::swap(plans[0].operands[1], plans[0].operands[2]); }),
            "");
  EXPECT_NE(fault_of(direct,
                     [](auto& plans) {
                       for (auto& step : plans[0].steps) step.awaits = 0;
                     }),
            "");
}

}  // namespace
}  // namespace athanor
