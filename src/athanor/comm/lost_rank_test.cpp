// What becomes of the others when a rank is lost in the middle of a collective, for every kind of collective.
// tests/lost_rank_slow_test.cpp has every algorithm.

#include <gtest/gtest.h>

#include "athanor/comm/lost_rank_cases.h"

namespace athanor {
namespace {

const std::vector<int> one_host = {0, 0, 0, 0}, two_hosts = {0, 0, 1, 1}, four_hosts = {0, 1, 2, 3};

TEST(LostRank, P97_OneThatIsKilledInAnyCollectiveEndsTheOthersAtOnce) {
  for (const std::vector<int>& hosts : {one_host, two_hosts, four_hosts})
    expect_lost_rank_reports(every_kind_of_collective(Loss::killed, hosts));
}

// Before the others have met it.
TEST(LostRank, P97_OneThatIsKilledBeforeItDoesAnythingEndsTheOthers) {
  std::vector<LostRankCase> cases = every_kind_of_collective(Loss::killed, one_host);
  for (LostRankCase& test : cases) test.at_first = true;
  expect_lost_rank_reports(cases);
}

TEST(LostRank, OneThatIsStoppedInAnyCollectiveEndsTheOthersSoon) {
  std::vector<LostRankCase> cases = every_kind_of_collective(Loss::stopped, one_host);
  for (const CollectiveKind kind : {CollectiveKind::all_reduce, CollectiveKind::send})
    cases.push_back({.kind = kind, .loss = Loss::stopped, .hosts = four_hosts});
  expect_lost_rank_reports(cases);
}

TEST(LostRank, P105_TheDeadlineOfAnyCollectiveNamesTheOneThatIsStopped) {
  std::vector<LostRankCase> cases = every_kind_of_collective(Loss::unanswered, one_host);
  for (const CollectiveKind kind : {CollectiveKind::all_gather, CollectiveKind::send})
    cases.push_back({.kind = kind, .loss = Loss::unanswered, .hosts = four_hosts});
  expect_lost_rank_reports(cases);
}

TEST(LostRank, ACutNetworkInAnyCollectiveEndsBothSides) {
  expect_lost_rank_reports(every_kind_of_collective(Loss::cut_off, four_hosts));
}

// Rank 1 has met rank 0, which has never turned to rank 1 and waits for rank 2.
TEST(LostRank, OneThatGivesUpReachesThoseItHasMetAlone) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0, 0}, {0, 1, 2}}) {
    ProcessRanks ranks(3, on_hosts(hosts), [](int rank, Communicator& communicator, Meeting& meeting) {
      communicator.add_group({0, "all", {0, 1, 2}});
      const auto memory = communicator.allocate(64);
      const auto run = [&](CollectiveKind kind, int peer) {
        Collective one{.group = 0, .input = memory.get(), .output = memory.get()};
        one.spec.kind = kind;
        one.spec.root = peer;
        one.spec.counts = {1};
        communicator.run(*communicator.prepare(one));
      };
      if (rank == 1) {
        run(CollectiveKind::send, 0);
        while (meeting.progress[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));  // rank 0 has lain down
        communicator.abort("out of paper");
      }
      if (rank == 0) {
        ++meeting.progress[0];
        run(CollectiveKind::receive, 2);
      }
      while (meeting.ended_ns[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
    EXPECT_EQ(ranks.wait_for(0, 20).substr(0, 20), "rank 1: out of paper");
  }
}

}  // namespace
}  // namespace athanor
