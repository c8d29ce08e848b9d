#include "athanor/comm/wait_report.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

RankAnswer begun(std::vector<IssuedCollective> last) {
  RankStatus status;
  status.begun = status.completed = last.size();
  status.last = std::move(last);
  return {true, std::move(status)};
}
const RankAnswer silent = {true, std::nullopt}, not_asked = {false, std::nullopt};

// Ranks 0 and 3 wait for each other's neighbour; 1 is still in another collective, 2 is silent.
TEST(WaitReport, P105_NamesThoseWhoHaveNotJoinedNotThoseWhoAreWaitedFor) {
  const IssuedCollective waiting{4, CollectiveKind::all_reduce, 7};
  const std::vector<int> ranks{0, 1, 2, 3};
  const std::vector<RankAnswer> answers{
      begun({waiting}), begun({{9, CollectiveKind::all_reduce, 7}, {4, CollectiveKind::all_reduce, 6}}),
      silent, begun({waiting})};
  const WaitReport report = report_wait(waiting, 0, 3, ranks, answers, {{4, "tp0"}, {9, "dp"}});
  EXPECT_EQ(report.missing, (std::vector<int>{1, 2}));
  EXPECT_NE(report.text.find("rank 2 does not answer"), std::string::npos);
  EXPECT_NE(
      report.text.find("rank 1: completed 2 of 2 begun collectives; the last: all_reduce #6 of group 'tp0'"),
      std::string::npos)
      << report.text;
}

TEST(WaitReport, NamesTheAwaitedRankWhenAllHaveJoined) {
  const IssuedCollective waiting{4, CollectiveKind::all_gather, 7};
  const std::vector<int> ranks{5, 8};
  const std::vector<RankAnswer> answers{begun({waiting}), begun({waiting})};
  EXPECT_EQ(report_wait(waiting, 5, 8, ranks, answers, {}).missing, std::vector<int>{8});
}

// Rank 0 waits for rank 1, which waits for rank 2.
TEST(WaitReport, P105_AMessageMayWaitForARankFartherAway) {
  const IssuedCollective waiting{4, CollectiveKind::receive, 7};
  const std::vector<int> ranks{0, 1, 2, 3};
  std::vector<RankAnswer> answers{begun({waiting}), begun({waiting}), silent, begun({})};
  ++answers[1].status->begun;
  EXPECT_EQ(report_wait(waiting, 0, 1, ranks, answers, {}).missing, std::vector<int>{2});
  answers[2] = begun({});
  const WaitReport report = report_wait(waiting, 0, 1, ranks, answers, {});
  EXPECT_EQ(report.missing, std::vector<int>{1});
  EXPECT_EQ(report.text.find("rank 2"), std::string::npos) << report.text;
  // The awaited one computes, and of the others nothing is known.
  answers[1] = begun({waiting});
  answers[2] = answers[3] = not_asked;
  EXPECT_EQ(report_wait(waiting, 0, 1, ranks, answers, {}).missing, std::vector<int>{1});
}

RankAnswer waits_for(int rank) {
  RankAnswer answer = begun({{9, CollectiveKind::reduce_scatter, 3}});
  ++answer.status->begun;
  answer.status->awaited = rank;
  return answer;
}

// Ranks 0 and 1 share a group; rank 0 has not come to it, since it waits for rank 2 in another one, which
// waits for rank 6.
TEST(WaitReport, P105_WhoIsMissingMayBeHeldUpByAnother) {
  const IssuedCollective waiting{4, CollectiveKind::all_reduce, 7};
  const std::vector<int> ranks{0, 1};
  const std::vector<RankAnswer> answers{waits_for(2), begun({waiting})};
  const GroupNames names{{4, "tensor"}, {9, "shard"}};
  std::map<int, RankAnswer> others{{2, waits_for(6)}, {6, silent}};
  std::vector<int> asked;
  const auto follow = [&] {
    WaitReport report = report_wait(waiting, 1, 0, ranks, answers, names);
    EXPECT_EQ(report.missing, std::vector<int>{0});
    asked.clear();
    follow_waits(report, ranks, answers, names, [&](int rank) {
      asked.push_back(rank);
      return others.at(rank);
    });
    return report;
  };
  const WaitReport report = follow();
  EXPECT_EQ(report.behind, std::vector<int>{6});
  EXPECT_NE(report.text.find("rank 0: completed 1 of 2 begun collectives; the last: reduce_scatter #3 of "
                             "group 'shard'; waits for rank 2\n"),
            std::string::npos)
      << report.text;
  EXPECT_NE(report.text.find("\n  rank 6 does not answer"), std::string::npos) << report.text;
  // Whose wait is over is busy.
  others[2] = begun({});
  EXPECT_EQ(follow().behind, std::vector<int>{2});
  others[2] = not_asked;
  EXPECT_EQ(follow().behind, std::vector<int>{2});
  // Who waits for each other is not followed for ever.
  others[2] = waits_for(6);
  others[6] = waits_for(2);
  EXPECT_EQ(follow().behind, std::vector<int>{});
  EXPECT_EQ(asked, (std::vector<int>{2, 6}));
  others[2] = waits_for(1);
  EXPECT_EQ(follow().behind, std::vector<int>{});
  for (int rank = 2; rank < 100; ++rank) others[rank] = waits_for(rank + 1);
  EXPECT_EQ(follow().behind, std::vector<int>{});
  EXPECT_EQ(asked.size(), 4U);
}

// In a ring over several hosts, the ranks that are not neighbours have no connection.
TEST(WaitReport, P105_WhoCannotBeAskedIsNotCalledSilent) {
  const IssuedCollective waiting{4, CollectiveKind::all_gather, 7};
  const std::vector<int> ranks{0, 1, 2, 3};
  std::vector<RankAnswer> answers{begun({waiting}), begun({waiting}), not_asked, begun({waiting})};
  const WaitReport report = report_wait(waiting, 0, 3, ranks, answers, {});
  EXPECT_EQ(report.missing, std::vector<int>{2});
  EXPECT_EQ(report.text.find("does not answer"), std::string::npos) << report.text;
  // Rank 3 waits in another one, or is busy with something else.
  answers[3] = begun({});
  ++answers[3].status->begun;
  EXPECT_EQ(report_wait(waiting, 0, 3, ranks, answers, {}).missing, (std::vector<int>{2, 3}));
  answers[3] = begun({});
  EXPECT_EQ(report_wait(waiting, 0, 3, ranks, answers, {}).missing, std::vector<int>{3});
}

}  // namespace
}  // namespace athanor
