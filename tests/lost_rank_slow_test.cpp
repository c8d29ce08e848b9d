// A rank that is lost in the middle of a collective: every algorithm of every kind, long and short messages.
// What the unit tests of comm have in fewer cases.

#include <gtest/gtest.h>

#include "athanor/comm/lost_rank_cases.h"

namespace athanor {
namespace {

// With the rank among those that get a broadcast and as its root.
std::vector<LostRankCase> every_algorithm(Loss loss, const std::vector<std::vector<int>>& hosts,
                                          const std::vector<int64_t>& counts) {
  std::vector<LostRankCase> cases;
  for (const std::vector<int>& each : hosts) {
    for (const LostRankCase& kind : every_kind_of_collective(loss, each)) {
      for (int algorithm = 0; algorithm < algorithm_count; ++algorithm) {
        // What a kind does not have is `automatic`, which stands for itself.
        LostRankCase test = kind;
        test.algorithm = static_cast<Algorithm>(algorithm);
        if (algorithm != 0 && !has_algorithm(test)) continue;
        for (const int64_t count : counts) {
          test.count = count;
          cases.push_back(test);
        }
      }
    }
  }
  return cases;
}

const std::vector<std::vector<int>> all_hosts = {{0, 0, 0, 0}, {0, 0, 1, 1}, {0, 1, 2, 3}};

TEST(LostRank, P97_OneThatIsKilledInAnyAlgorithmEndsTheOthersAtOnce) {
  expect_lost_rank_reports(every_algorithm(Loss::killed, all_hosts, {7, 200'000, 2'000'000}));
}

TEST(LostRank, P97_OneThatIsKilledBeforeItDoesAnythingEndsTheOthers) {
  std::vector<LostRankCase> cases = every_algorithm(Loss::killed, all_hosts, {7, 200'000});
  for (LostRankCase& test : cases) test.at_first = true;
  expect_lost_rank_reports(cases);
}

TEST(LostRank, OneThatIsStoppedInAnyAlgorithmEndsTheOthersSoon) {
  expect_lost_rank_reports(every_algorithm(Loss::stopped, all_hosts, {200'000}));
}

TEST(LostRank, P105_TheDeadlineOfAnyAlgorithmNamesTheOneThatIsStopped) {
  expect_lost_rank_reports(every_algorithm(Loss::unanswered, all_hosts, {200'000}));
}

TEST(LostRank, ACutNetworkInAnyAlgorithmEndsBothSides) {
  expect_lost_rank_reports(every_algorithm(Loss::cut_off, {{0, 1, 2, 3}}, {7, 200'000}));
}

}  // namespace
}  // namespace athanor
