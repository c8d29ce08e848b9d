#include "athanor/train/replica_check.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "athanor/base/crc32c.h"
#include "athanor/base/error.h"
#include "athanor/train/rank_agreement.h"

namespace athanor {

namespace {

constexpr size_t most_named = 5;

// Of one tensor on one rank: which elements it has, and what they are.
struct Copy {
  uint32_t elements = 0, bytes = 0;
};

std::vector<Copy> copies_of(std::span<const NamedTensor> state) {
  std::vector<Copy> copies;
  for (const NamedTensor& tensor : state) {
    if (tensor.runs.empty()) {
      copies.push_back({});
      continue;
    }
    Crc32c elements;
    for (const StoredRun& run : tensor.runs) elements.update(std::as_bytes(std::span(&run, 1)));
    copies.push_back({elements.value(), crc32c(tensor.bytes)});
  }
  return copies;
}

// The ranks of one part by what they hold.
using Holders = std::map<uint32_t, std::vector<int>>;

std::string difference_of(const std::string& name, const Holders& holders) {
  const auto most = std::max_element(holders.begin(), holders.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size();
  });
  const bool clear = std::count_if(holders.begin(), holders.end(), [&](const auto& each) {
                       return each.second.size() == most->second.size();
                     }) == 1;
  std::vector<int> odd, all;
  for (const auto& [bytes, ranks] : holders) {
    all.insert(all.end(), ranks.begin(), ranks.end());
    if (!clear || bytes != most->first) odd.insert(odd.end(), ranks.begin(), ranks.end());
  }
  std::sort(odd.begin(), odd.end());
  std::sort(all.begin(), all.end());
  return clear ? fmt::format("{} on rank {} (of ranks {})", name, fmt::join(odd, ", "), fmt::join(all, ", "))
               : fmt::format("{} between ranks {}", name, fmt::join(all, ", "));
}

// Rank 0: what differs, or nothing.
std::string find_differences(RankMessages& messages, std::span<const NamedTensor> state,
                             const std::vector<Copy>& own) {
  std::vector<std::map<uint32_t, Holders>> parts(state.size());
  for (int rank = 0; rank < messages.ranks(); ++rank) {
    std::vector<Copy> copies = own;
    if (rank > 0) {
      std::vector<std::byte> message;
      messages.receive(rank, message);
      ATHANOR_ASSERT(message.size() == own.size() * sizeof(Copy), "rank {} has another state", rank);
      std::memcpy(copies.data(), message.data(), message.size());
    }
    for (size_t i = 0; i < copies.size(); ++i) {
      if (copies[i].elements != 0) parts[i][copies[i].elements][copies[i].bytes].push_back(rank);
    }
  }
  std::vector<std::string> differences;
  for (size_t i = 0; i < state.size(); ++i) {
    for (const auto& [elements, holders] : parts[i]) {
      if (holders.size() > 1) differences.push_back(difference_of(state[i].name, holders));
    }
  }
  const size_t count = differences.size();
  if (count == 0) return {};
  differences.resize(std::min(count, most_named));
  if (count > most_named) differences.push_back(fmt::format("and {} more", count - most_named));
  return fmt::format("{}", fmt::join(differences, "; "));
}

}  // namespace

void check_replicas(RankMessages& messages, std::span<const NamedTensor> state, int64_t step) {
  if (messages.ranks() == 1) return;
  const std::vector<Copy> own = copies_of(state);
  std::string differences;
  if (messages.is_first()) {
    differences = find_differences(messages, state, own);
  } else {
    messages.send(0, std::as_bytes(std::span(own)));
  }
  messages.broadcast(differences);
  if (differences.empty()) return;
  throw_on_all(
      messages,
      Error(ErrorKind::stop_job,
            fmt::format("step {}: ranks that must hold the same weights do not: {}", step, differences),
            "a machine computes or remembers wrongly; go on from the last checkpoint without it"));
}

}  // namespace athanor
