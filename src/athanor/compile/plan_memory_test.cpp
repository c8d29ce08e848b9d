#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "athanor/compile/passes.h"

namespace athanor {
namespace {

// The same greedy with a look at every placed interval.
int64_t pack_plainly(std::vector<Interval>& intervals) {
  std::vector<size_t> order(intervals.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return intervals[a].bytes > intervals[b].bytes; });
  int64_t total = 0;
  for (const size_t index : order) {
    Interval& interval = intervals[index];
    int64_t offset = 0;
    for (bool moved = true; moved;) {
      moved = false;
      for (const Interval& other : intervals) {
        if (other.offset < 0 || other.last < interval.first || interval.last < other.first) continue;
        if (other.offset >= offset + aligned(interval.bytes)) continue;
        if (offset >= other.offset + aligned(other.bytes)) continue;
        offset = other.offset + aligned(other.bytes);
        moved = true;
      }
    }
    interval.offset = offset;
    total = std::max(total, offset + aligned(interval.bytes));
  }
  return total;
}

TEST(PlanMemory, packs_as_the_plain_greedy_does) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    std::vector<Interval> intervals(random() % 40);
    for (Interval& interval : intervals) {
      interval.bytes = static_cast<int64_t>(random() % 1000);
      interval.first = static_cast<int64_t>(random() % 30);
      interval.last = interval.first + static_cast<int64_t>(random() % 20);
    }
    std::vector<Interval> plain = intervals;
    EXPECT_EQ(pack(intervals), pack_plainly(plain));
    for (size_t i = 0; i < intervals.size(); ++i) EXPECT_EQ(intervals[i].offset, plain[i].offset);
  }
}

TEST(PlanMemory, what_lives_at_the_same_time_shares_no_byte) {
  std::vector<Interval> intervals;
  for (int64_t layer = 0; layer < 100; ++layer) intervals.push_back({4096 + layer, layer, 200 - layer, -1});
  const int64_t total = pack(intervals);
  int64_t sum = 0;
  for (const Interval& interval : intervals) sum += aligned(interval.bytes);
  EXPECT_EQ(total, sum);
}

}  // namespace
}  // namespace athanor
