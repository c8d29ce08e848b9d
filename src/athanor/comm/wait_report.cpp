#include "athanor/comm/wait_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <set>

namespace athanor {

std::string describe(const IssuedCollective& collective, const GroupNames& groups) {
  const auto name = groups.find(collective.group);
  return fmt::format("{} #{} of group {}", name_of(collective.kind), collective.sequence,
                     name == groups.end() ? fmt::format("#{}", collective.group) : "'" + name->second + "'");
}

namespace {

// The rank that another waits for; negative if it does not.
int awaited_by(const RankStatus& status) {
  return status.completed == status.begun ? -1 : status.awaited;
}

std::string line_of(int rank, const RankAnswer& answer, const GroupNames& groups) {
  if (!answer.asked) return fmt::format("\n  rank {} cannot be asked: there is no connection to it", rank);
  if (!answer.status) return fmt::format("\n  rank {} does not answer", rank);
  return fmt::format("\n  rank {}: {}", rank, describe(*answer.status, groups, 1));
}

}  // namespace

std::string describe(const RankStatus& status, const GroupNames& groups, size_t most) {
  std::string text = fmt::format("completed {} of {} begun collectives", status.completed, status.begun);
  if (!status.last.empty()) {
    text += "; the last:";
    const size_t first = status.last.size() - std::min(most, status.last.size());
    for (size_t i = first; i < status.last.size(); ++i)
      text += fmt::format("{} {}", i == first ? "" : ",", describe(status.last[i], groups));
  }
  if (awaited_by(status) >= 0) text += fmt::format("; waits for rank {}", status.awaited);
  if (!status.phase.empty()) text += fmt::format("; phase: {}", status.phase);
  if (!status.failure.empty()) text += fmt::format("; gave up: {}", status.failure);
  return text;
}

WaitReport report_wait(const IssuedCollective& waiting, int self, int awaited, std::span<const int> ranks,
                       std::span<const RankAnswer> answers, const GroupNames& groups) {
  WaitReport report;
  std::vector<int> unknown;
  bool somebody_idle = false;  // or silent: the others wait for it
  const bool pairwise = waiting.kind == CollectiveKind::send || waiting.kind == CollectiveKind::receive;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i];
    const std::optional<RankStatus>& status = answers[i].status;
    // Others may be those that the awaited one waits for itself.
    if (pairwise && rank != self && rank != awaited && status) continue;
    report.text += line_of(rank, answers[i], groups);
    if (!answers[i].asked) {
      unknown.push_back(rank);
      continue;
    }
    if (!status) {
      report.missing.push_back(rank);
      somebody_idle = true;
      continue;
    }
    const bool begun = std::any_of(status->last.begin(), status->last.end(), [&](const auto& each) {
      return each.group == waiting.group && each.sequence == waiting.sequence &&
             (pairwise || each.kind == waiting.kind);
    });
    const bool idle = status->completed == status->begun;
    if (rank != self && !pairwise && !begun) report.missing.push_back(rank);
    if (rank != self && idle && (pairwise || !begun)) somebody_idle = true;
  }
  // All that answer wait themselves: for those that could not be asked, or for messages on their way.
  if (!somebody_idle) report.missing.insert(report.missing.end(), unknown.begin(), unknown.end());
  if (report.missing.empty()) report.missing.push_back(awaited);
  std::sort(report.missing.begin(), report.missing.end());
  return report;
}

void follow_waits(WaitReport& report, std::span<const int> ranks, std::span<const RankAnswer> answers,
                  const GroupNames& groups, const std::function<RankAnswer(int)>& ask) {
  constexpr int most_asked = 4;  // each may take a second
  int asked = 0;
  std::set<int> seen(ranks.begin(), ranks.end());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (!std::ranges::binary_search(report.missing, ranks[i]) || !answers[i].status) continue;
    int next = awaited_by(*answers[i].status), last = -1;
    while (next >= 0 && asked < most_asked && seen.insert(next).second) {
      last = next;
      const RankAnswer answer = ask(last);
      ++asked;
      report.text += line_of(last, answer, groups);
      next = answer.status ? awaited_by(*answer.status) : -1;
    }
    if (last >= 0 && next < 0) report.behind.push_back(last);
  }
  std::ranges::sort(report.behind);
}

}  // namespace athanor
