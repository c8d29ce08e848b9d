#include <algorithm>
#include <numeric>

#include "athanor/compile/passes.h"

namespace athanor {

int64_t aligned(int64_t bytes) {
  return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
}

// Largest first, each at the lowest offset that is free while it lives: the usual greedy for this NP-hard
// problem; on a training step, where lives nest, it ends at or within a few percent of the lower bound.
int64_t pack(std::vector<Interval>& intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  std::vector<size_t> placed;  // by rising offset
  int64_t total = 0;
  for (const size_t index : order) {
    Interval& interval = intervals[index];
    const int64_t bytes = aligned(interval.bytes);
    int64_t offset = 0;
    for (const size_t other : placed) {
      const Interval& busy = intervals[other];
      if (busy.last < interval.first || interval.last < busy.first) continue;
      if (busy.offset >= offset + bytes) break;
      offset = std::max(offset, busy.offset + aligned(busy.bytes));
    }
    interval.offset = offset;
    total = std::max(total, offset + bytes);
    const auto at = std::upper_bound(placed.begin(), placed.end(), offset, [&](int64_t value, size_t other) {
      return value < intervals[other].offset;
    });
    placed.insert(at, index);
  }
  return total;
}

}  // namespace athanor
