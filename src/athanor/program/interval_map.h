// A map from bytes to labels, kept as disjoint intervals: what the verifier knows about a piece of memory.
//
// Internal to `program`. Thread safety: a value type.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

namespace athanor {

// Half-open [begin, end).
struct ByteRange {
  int64_t begin = 0, end = 0;
  friend bool operator==(const ByteRange&, const ByteRange&) = default;
};

template <class Label>
class IntervalMap {
 public:
  // Gives the bytes a label, whatever they had before. Neighbours of one label become one interval.
  void assign(ByteRange range, const Label& label) {
    if (range.begin >= range.end) return;
    split(range.begin);
    split(range.end);
    auto at = intervals_.erase(intervals_.lower_bound(range.begin), intervals_.lower_bound(range.end));
    if (at != intervals_.end() && at->first == range.end && at->second.label == label) {
      range.end = at->second.end;
      at = intervals_.erase(at);
    }
    if (at != intervals_.begin()) {
      const auto before = std::prev(at);
      if (before->second.end == range.begin && before->second.label == label) {
        before->second.end = range.end;
        return;
      }
    }
    intervals_.emplace_hint(at, range.begin, Interval{range.end, label});
  }

  void erase(ByteRange range) {
    if (range.begin >= range.end) return;
    split(range.begin);
    split(range.end);
    intervals_.erase(intervals_.lower_bound(range.begin), intervals_.lower_bound(range.end));
  }

  // The interval that holds the whole range, if there is one.
  std::optional<std::pair<ByteRange, Label>> interval_around(ByteRange range) const {
    auto at = intervals_.upper_bound(range.begin);
    if (at == intervals_.begin()) return std::nullopt;
    --at;
    if (at->second.end < range.end) return std::nullopt;
    return {{ByteRange{at->first, at->second.end}, at->second.label}};
  }

  // Calls visit(ByteRange, const Label*) for the pieces of the range in order; a null label for a gap.
  template <class Visit>
  void visit(ByteRange range, const Visit& visit) const {
    int64_t at = range.begin;
    auto next = intervals_.upper_bound(range.begin);
    if (next != intervals_.begin() && std::prev(next)->second.end > range.begin) --next;
    for (; at < range.end; ++next) {
      if (next == intervals_.end() || next->first >= range.end) {
        visit(ByteRange{at, range.end}, static_cast<const Label*>(nullptr));
        return;
      }
      if (next->first > at) visit(ByteRange{at, next->first}, static_cast<const Label*>(nullptr));
      const int64_t begin = std::max(at, next->first), end = std::min(range.end, next->second.end);
      visit(ByteRange{begin, end}, &next->second.label);
      at = end;
    }
  }

  // Changes the labels of the range piece by piece; gaps begin with `fresh`.
  template <class Update>
  void update(ByteRange range, const Label& fresh, const Update& update) {
    if (range.begin >= range.end) return;
    split(range.begin);
    split(range.end);
    int64_t at = range.begin;
    for (auto next = intervals_.lower_bound(range.begin); at < range.end;) {
      if (next == intervals_.end() || next->first > at) {
        const int64_t end = next == intervals_.end() ? range.end : std::min(range.end, next->first);
        next = intervals_.emplace_hint(next, at, Interval{end, fresh});
      }
      update(next->second.label);
      at = next->second.end;
      ++next;
    }
  }

  // Calls visit(ByteRange) for every interval in order.
  template <class Visit>
  void visit_all(const Visit& visit) const {
    for (const auto& [begin, interval] : intervals_) visit(ByteRange{begin, interval.end});
  }

  size_t size() const { return intervals_.size(); }

 private:
  struct Interval {
    int64_t end;
    Label label;
  };

  // Cuts the interval that holds `at` in its inside.
  void split(int64_t at) {
    const auto next = intervals_.lower_bound(at);
    if (next == intervals_.begin()) return;
    const auto before = std::prev(next);
    if (before->second.end <= at) return;
    intervals_.emplace_hint(next, at, Interval{before->second.end, before->second.label});
    before->second.end = at;
  }

  std::map<int64_t, Interval> intervals_;
};

}  // namespace athanor
