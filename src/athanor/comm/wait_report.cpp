#include "athanor/comm/wait_report.h"

#include <fmt/core.h>

#include <algorithm>

namespace athanor {

std::string describe(const IssuedCollective& collective, const GroupNames& groups) {
  const auto name = groups.find(collective.group);
  return fmt::format("{} #{} of group {}", name_of(collective.kind), collective.sequence,
                     name == groups.end() ? fmt::format("#{}", collective.group) : "'" + name->second + "'");
}

std::string describe(const RankStatus& status, const GroupNames& groups, size_t most) {
  std::string text = fmt::format("completed {} of {} begun collectives", status.completed, status.begun);
  if (!status.last.empty()) {
    text += "; the last:";
    const size_t first = status.last.size() - std::min(most, status.last.size());
    for (size_t i = first; i < status.last.size(); ++i)
      text += fmt::format("{} {}", i == first ? "" : ",", describe(status.last[i], groups));
  }
  if (!status.phase.empty()) text += fmt::format("; phase: {}", status.phase);
  if (!status.failure.empty()) text += fmt::format("; gave up: {}", status.failure);
  return text;
}

WaitReport report_wait(const IssuedCollective& waiting, int self, int awaited, std::span<const int> ranks,
                       std::span<const std::optional<RankStatus>> statuses, const GroupNames& groups) {
  WaitReport report;
  const bool pairwise = waiting.kind == CollectiveKind::send || waiting.kind == CollectiveKind::receive;
  for (size_t i = 0; i < ranks.size(); ++i) {
    const int rank = ranks[i];
    if (pairwise && rank != self && rank != awaited) continue;
    if (!statuses[i]) {
      report.missing.push_back(rank);
      report.text += fmt::format("\n  rank {} does not answer", rank);
      continue;
    }
    const bool begun = std::any_of(statuses[i]->last.begin(), statuses[i]->last.end(), [&](const auto& each) {
      return each.group == waiting.group && each.sequence == waiting.sequence &&
             (pairwise || each.kind == waiting.kind);
    });
    if (rank != self && !pairwise && !begun) report.missing.push_back(rank);
    report.text += fmt::format("\n  rank {}: {}", rank, describe(*statuses[i], groups, 1));
  }
  if (report.missing.empty()) report.missing.push_back(awaited);
  std::sort(report.missing.begin(), report.missing.end());
  return report;
}

}  // namespace athanor
