#include "athanor/comm/wait_report.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

RankStatus begun(std::vector<IssuedCollective> last) {
  RankStatus status;
  status.begun = status.completed = last.size();
  status.last = std::move(last);
  return status;
}

// Ranks 0 and 3 wait for each other's neighbour; 1 is still in another collective, 2 is silent.
TEST(WaitReport, P105_NamesThoseWhoHaveNotJoinedNotThoseWhoAreWaitedFor) {
  const IssuedCollective waiting{4, CollectiveKind::all_reduce, 7};
  const std::vector<int> ranks{0, 1, 2, 3};
  const std::vector<std::optional<RankStatus>> statuses{
      begun({waiting}), begun({{9, CollectiveKind::all_reduce, 7}, {4, CollectiveKind::all_reduce, 6}}),
      std::nullopt, begun({waiting})};
  const WaitReport report = report_wait(waiting, 0, 3, ranks, statuses, {{4, "tp0"}, {9, "dp"}});
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
  const std::vector<std::optional<RankStatus>> statuses{begun({waiting}), begun({waiting})};
  EXPECT_EQ(report_wait(waiting, 5, 8, ranks, statuses, {}).missing, std::vector<int>{8});
}

}  // namespace
}  // namespace athanor
