#include "athanor/data/packing.h"

#include <algorithm>
#include <map>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr size_t group_size = 65'536;

int64_t places_of(const TokenRange& piece) {
  return piece.size() - 1;
}

}  // namespace

PackedWindows::PackedWindows(const TokenSource& tokens, TokenRange range, int64_t sequence_length) {
  ATHANOR_ASSERT(sequence_length >= 1 && range.begin >= 0 && range.end <= tokens.token_count());
  std::vector<TokenRange> group;
  for (int64_t at = range.begin; at < range.end;) {
    const int64_t end = std::min(tokens.document_at(at).end, range.end);
    // Pieces share a token: the last one predicted is the first one read of the next.
    for (; end - at > 1; at = std::min(end, at + sequence_length)) {
      group.push_back({at, std::min(end, at + sequence_length + 1)});
      if (group.size() == group_size) pack(group, sequence_length);
      if (end - at <= sequence_length + 1) break;
    }
    at = end;
  }
  pack(group, sequence_length);
}

void PackedWindows::pack(std::vector<TokenRange>& group, int64_t sequence_length) {
  std::stable_sort(group.begin(), group.end(),
                   [](const TokenRange& a, const TokenRange& b) { return a.size() > b.size(); });
  std::vector<std::vector<TokenRange>> windows;
  std::map<int64_t, std::vector<size_t>> by_space;  // windows with so many free places
  for (const TokenRange& piece : group) {
    size_t window = windows.size();
    int64_t space = sequence_length;
    const auto found = by_space.lower_bound(places_of(piece));
    if (found == by_space.end()) {
      windows.emplace_back();
    } else {
      space = found->first;
      window = found->second.back();
      found->second.pop_back();
      if (found->second.empty()) by_space.erase(found);
    }
    windows[window].push_back(piece);
    places_ += places_of(piece);
    if (space > places_of(piece)) by_space[space - places_of(piece)].push_back(window);
  }
  for (auto& window : windows) {
    std::sort(window.begin(), window.end(),
              [](const TokenRange& a, const TokenRange& b) { return a.begin < b.begin; });
    pieces_.insert(pieces_.end(), window.begin(), window.end());
    first_pieces_.push_back(static_cast<int64_t>(pieces_.size()));
  }
  group.clear();
}

std::span<const TokenRange> PackedWindows::pieces(int64_t window) const {
  const auto number = static_cast<size_t>(window);
  const auto begin = static_cast<size_t>(first_pieces_.at(number)),
             end = static_cast<size_t>(first_pieces_.at(number + 1));
  return std::span(pieces_).subspan(begin, end - begin);
}

}  // namespace athanor
