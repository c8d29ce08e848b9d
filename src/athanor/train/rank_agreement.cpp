#include "athanor/train/rank_agreement.h"

#include <array>
#include <limits>
#include <sstream>

#include "athanor/observe/format.h"

namespace athanor {

namespace {

// The text of `rank`, which all ranks name alike, on every rank.
std::string text_of(RankMessages& messages, int rank, const std::string& own) {
  std::string text = own;
  if (rank != 0 && messages.rank() == rank) messages.send(0, std::as_bytes(std::span(own)));
  if (rank != 0 && messages.is_first()) {
    std::vector<std::byte> message;
    messages.receive(rank, message);
    text.assign(reinterpret_cast<const char*>(message.data()), message.size());
  }
  messages.broadcast(text);
  return text;
}

// The first lines that differ, as they are on rank 0 and here.
std::string other_lines(const std::string& first, const std::string& own) {
  constexpr int most = 3;
  constexpr size_t most_bytes = 200;
  std::istringstream left(first), right(own);
  std::string a, b, found;
  for (int count = 0; count < most;) {
    const bool more = static_cast<bool>(std::getline(left, a));
    if (!std::getline(right, b) || !more) break;
    if (a == b) continue;
    ++count;
    found += fmt::format("\n  {} instead of {}", b.substr(0, most_bytes), a.substr(0, most_bytes));
  }
  return found.empty() ? found : ":" + found;
}

// The first rank with the smallest value, and nothing where that is the largest there is.
std::optional<int> rank_of_least(RankMessages& messages, int64_t value) {
  // The largest of what is left to the maximum, and of the ranks that have it the largest complement.
  constexpr int64_t most = std::numeric_limits<int64_t>::max();
  int64_t left = most - value;
  messages.all_max({&left, 1});
  if (left == 0) return std::nullopt;
  int64_t rank = most - value == left ? messages.ranks() - messages.rank() : 0;
  messages.all_max({&rank, 1});
  return messages.ranks() - static_cast<int>(rank);
}

}  // namespace

Requests agree(RankMessages& messages, const Requests& own) {
  // Ranks that want to stop, the first one largest.
  std::array<int64_t, 2> values{own.stop_reason.empty() ? 0 : messages.ranks() - messages.rank(),
                                own.save ? 1 : 0};
  messages.all_max(values);
  Requests all{own.stop_reason, values[1] != 0};
  if (values[0] != 0 && messages.ranks() > 1)
    all.stop_reason = text_of(messages, messages.ranks() - static_cast<int>(values[0]), own.stop_reason);
  return all;
}

std::string agree_on_non_finite(RankMessages& messages, const std::optional<NonFinite>& found) {
  int64_t order = std::numeric_limits<int64_t>::max();
  std::string text;
  if (found) {
    order = found->order;
    text = fmt::format("the first tensor with it is {} ({} of {}, micro-batch {}, element {}: {})",
                       found->tensor, found->part, found->operation, found->micro_batch, found->index,
                       format_short(found->value));
    if (messages.ranks() > 1) text += fmt::format(" on rank {}", messages.rank());
  }
  if (messages.ranks() == 1) return text;
  const auto rank = rank_of_least(messages, order);
  return rank ? text_of(messages, *rank, text) : std::string();
}

void require_same(RankMessages& messages, const std::string& what, const std::string& text) {
  if (messages.ranks() == 1) return;
  std::string first = text;
  messages.broadcast(first);
  const auto other = rank_of_least(messages, text == first ? std::numeric_limits<int64_t>::max() : 0);
  if (!other) return;
  const std::string lines = text_of(messages, *other, other_lines(first, text));
  throw_on_all(messages,
               Error(ErrorKind::user, fmt::format("rank {} has other {} than rank 0{}", *other, what, lines),
                     "start all ranks with the same options, on the same files"));
}

void throw_on_all(RankMessages& messages, const Error& error) {
  try {
    messages.wait_for_all();
  } catch (const Error&) {
    // Another one was faster; it knew the same.
  }
  throw error;
}

}  // namespace athanor
