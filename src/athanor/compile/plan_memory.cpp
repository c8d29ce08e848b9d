#include <algorithm>
#include <bit>
#include <limits>
#include <numeric>

#include "athanor/compile/passes.h"

namespace athanor {

namespace {

// Bytes in use as ranges that neither meet nor touch, by rising begin. The same few offsets come again for
// every micro-batch, so there are few of them however many intervals they stand for.
class BusyBytes {
 public:
  struct Range {
    int64_t begin, end;
  };

  void add(Range range) {
    const auto first = std::partition_point(ranges_.begin(), ranges_.end(),
                                            [&](const Range& r) { return r.end < range.begin; });
    auto last = first;
    for (; last != ranges_.end() && last->begin <= range.end; ++last) {
      range.begin = std::min(range.begin, last->begin);
      range.end = std::max(range.end, last->end);
    }
    if (first == last) {
      ranges_.insert(first, range);
    } else {
      *first = range;
      ranges_.erase(first + 1, last);
    }
  }
  const std::vector<Range>& ranges() const { return ranges_; }

 private:
  std::vector<Range> ranges_;
};

// What is busy in which calls: a segment tree over the calls.
class BusyCalls {
 public:
  explicit BusyCalls(const std::vector<Interval>& intervals) {
    for (const Interval& interval : intervals) {
      first_ = std::min(first_, interval.first);
      last_ = std::max(last_, interval.last);
    }
    if (intervals.empty()) return;
    leaves_ = std::bit_ceil(static_cast<size_t>(last_ - first_) + 1);
    throughout_.resize(2 * leaves_);
    somewhere_.resize(2 * leaves_);
  }

  void add(const Interval& interval) {
    const BusyBytes::Range bytes{interval.offset, interval.offset + aligned(interval.bytes)};
    visit(interval, [&](size_t node, bool whole) {
      somewhere_[node].add(bytes);
      if (whole) throughout_[node].add(bytes);
    });
  }

  // The lowest offset at which `interval` has its bytes for itself.
  int64_t lowest_free(const Interval& interval) {
    found_.clear();
    visit(interval, [&](size_t node, bool whole) {
      const auto& ranges = (whole ? somewhere_ : throughout_)[node].ranges();
      found_.insert(found_.end(), ranges.begin(), ranges.end());
    });
    std::sort(found_.begin(), found_.end(),
              [](const BusyBytes::Range& a, const BusyBytes::Range& b) { return a.begin < b.begin; });
    int64_t offset = 0;
    for (const BusyBytes::Range& busy : found_) {
      if (busy.begin >= offset + aligned(interval.bytes)) break;
      offset = std::max(offset, busy.end);
    }
    return offset;
  }

 private:
  // The largest nodes that lie in the interval (`whole`), and all above them.
  template <class Visit>
  void visit(const Interval& interval, const Visit& visit) const {
    this->visit(1, 0, leaves_, static_cast<size_t>(interval.first - first_),
                static_cast<size_t>(interval.last - first_), visit);
  }
  template <class Visit>
  void visit(size_t node, size_t begin, size_t width, size_t first, size_t last, const Visit& visit) const {
    if (last < begin || begin + width <= first) return;
    const bool whole = first <= begin && begin + width - 1 <= last;
    visit(node, whole);
    if (whole) return;
    this->visit(2 * node, begin, width / 2, first, last, visit);
    this->visit(2 * node + 1, begin + width / 2, width / 2, first, last, visit);
  }

  int64_t first_ = std::numeric_limits<int64_t>::max(), last_ = std::numeric_limits<int64_t>::min();
  size_t leaves_ = 1;
  std::vector<BusyBytes> throughout_;  // by node: busy in all of its calls
  std::vector<BusyBytes> somewhere_;   // by node: busy in one of its calls at least
  std::vector<BusyBytes::Range> found_;
};

}  // namespace

// Largest first, each at the lowest offset that is free while it lives: the usual greedy for this NP-hard
// problem; on a training step, where lives nest, it ends at or within a few percent of the lower bound.
int64_t pack(std::vector<Interval>& intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  BusyCalls busy(intervals);
  int64_t total = 0;
  for (const size_t index : order) {
    Interval& interval = intervals[index];
    interval.offset = busy.lowest_free(interval);
    total = std::max(total, interval.offset + aligned(interval.bytes));
    if (interval.bytes > 0) busy.add(interval);
  }
  return total;
}

}  // namespace athanor
