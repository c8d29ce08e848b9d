#include "athanor/program/interval_map.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace athanor {
namespace {

// Against an array with a label for every byte, 0 for none.
TEST(IntervalMap, DoesWhatAnArrayOfLabelsDoes) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    IntervalMap<int> map;
    std::vector<int> array(60, 0);
    for (int step = 0; step < 60; ++step) {
      auto begin = static_cast<int64_t>(random() % 60), end = static_cast<int64_t>(random() % 61);
      if (begin > end) std::swap(begin, end);
      const int label = 1 + static_cast<int>(random() % 3);
      if (random() % 2 == 0) {
        map.assign({begin, end}, label);
        for (int64_t i = begin; i < end; ++i) array[static_cast<size_t>(i)] = label;
      } else {
        map.update({begin, end}, 10, [](int& l) { ++l; });
        for (int64_t i = begin; i < end; ++i) {
          int& l = array[static_cast<size_t>(i)];
          l = (l == 0 ? 10 : l) + 1;
        }
      }
      auto from = static_cast<int64_t>(random() % 60), to = static_cast<int64_t>(random() % 61);
      if (from > to) std::swap(from, to);
      int64_t at = from;
      map.visit({from, to}, [&](ByteRange piece, const int* found) {
        ASSERT_EQ(piece.begin, at);
        ASSERT_LT(piece.begin, piece.end);
        for (int64_t i = piece.begin; i < piece.end; ++i) {
          ASSERT_EQ(array[static_cast<size_t>(i)], found == nullptr ? 0 : *found);
        }
        at = piece.end;
      });
      ASSERT_EQ(at, to);
    }
    int64_t last = -1;
    map.visit_all([&](ByteRange piece) {
      ASSERT_GE(piece.begin, last);
      last = piece.end;
    });
  }
}

TEST(IntervalMap, NeighboursOfOneLabelAreOneInterval) {
  IntervalMap<int> map;
  for (int64_t i = 0; i < 100; i += 2) map.assign({i, i + 1}, 7);
  EXPECT_EQ(map.size(), 50U);
  for (int64_t i = 1; i < 100; i += 2) map.assign({i, i + 1}, 7);
  EXPECT_EQ(map.size(), 1U);
  map.assign({40, 60}, 8);
  EXPECT_EQ(map.size(), 3U);
}

}  // namespace
}  // namespace athanor
