// Who is to blame when a collective does not go on, in words.
//
// Called by communicator.cpp. Thread safety: pure functions.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/comm/collective.h"
#include "athanor/comm/rank_board.h"
#include "athanor/comm/transport.h"

namespace athanor {

using GroupNames = std::map<GroupId, std::string>;

// "all_reduce #7 of group 'tensor 0'".
std::string describe(const IssuedCollective& collective, const GroupNames& groups);
// How far a rank has come, the last `most` collectives that it began, and its phase.
std::string describe(const RankStatus& status, const GroupNames& groups, size_t most);

struct WaitReport {
  std::vector<int> missing;  // ranks, sorted
  std::vector<int> behind;   // ranks outside of the group that missing ones wait for, sorted
  std::string text;          // one line for each member, and for each rank that was asked besides
};

// `waiting` by the rank `self` for `awaited`; `answers` of `ranks`, the group's members. Missing are those
// that did not answer and those that have not begun the collective, and if none of them is out of all
// collectives, those that could not be asked; if there is none of all these, the awaited one. Of a message
// between two, the others matter only if they do not answer.
WaitReport report_wait(const IssuedCollective& waiting, int self, int awaited, std::span<const int> ranks,
                       std::span<const RankAnswer> answers, const GroupNames& groups);

// Missing ranks may wait in other groups, for ranks that wait again: finds the ends of that, asking each.
// `ranks` and `answers` as of report_wait.
void follow_waits(WaitReport& report, std::span<const int> ranks, std::span<const RankAnswer> answers,
                  const GroupNames& groups, const std::function<RankAnswer(int)>& ask);

}  // namespace athanor
