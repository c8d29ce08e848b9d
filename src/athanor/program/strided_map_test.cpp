#include "athanor/program/strided_map.h"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace athanor {
namespace {

constexpr int64_t size = 240;
using Array = std::vector<int>;  // a label for every byte, 0 for none

template <class Use>
void for_each_byte(const StridedRange& range, const Use& use) {
  for (int64_t row = 0; row < range.rows; ++row) {
    for (int64_t i = 0; i < range.width; ++i) use(static_cast<size_t>(range.begin + row * range.stride + i));
  }
}

bool all_are(const Array& array, const StridedRange& range, int label) {
  bool all = true;
  for_each_byte(range, [&](size_t i) { all = all && array[i] == label; });
  return all;
}

bool all_are(const StridedMap<int>& map, const StridedRange& range, int label) {
  return !map.find(range, [&](const int* found) { return found == nullptr || *found != label; });
}

StridedRange random_range(std::mt19937_64& random) {
  for (;;) {
    StridedRange range;
    range.width = 1 + static_cast<int64_t>(random() % 20);
    range.stride = range.width + static_cast<int64_t>(random() % 12);
    range.rows = 1 + static_cast<int64_t>(random() % 9);
    range.begin = static_cast<int64_t>(random() % size);
    if (range.end() <= size) return range;
  }
}

// Whatever patterns meet, the map never claims that bytes hold a label which they do not.
TEST(StridedMap, NeverClaimsTooMuch) {
  std::mt19937_64 random(1);
  int claims = 0;
  for (int round = 0; round < 3000; ++round) {
    StridedMap<int> map;
    Array array(size, 0);
    std::vector<StridedRange> used;
    for (int step = 1; step <= 12; ++step) {
      const StridedRange range = random_range(random);
      const int label = 1 + static_cast<int>(random() % 3);
      map.assign(range, label);
      for_each_byte(range, [&](size_t i) { array[i] = label; });
      used.push_back(range);
      ASSERT_TRUE(all_are(map, range, label));  // the newest is always known
      for (const StridedRange& asked : {used[random() % used.size()], random_range(random)}) {
        for (int l = 1; l <= 3; ++l) {
          if (!all_are(map, asked, l)) continue;
          ++claims;
          ASSERT_TRUE(all_are(array, asked, l)) << round << " " << step;
        }
      }
    }
  }
  EXPECT_GT(claims, 10000);
}

// Rows of parts of one owner, in one piece or in parts, and other owners before and behind: exact.
TEST(StridedMap, IsExactForPartsOfOwners) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 2000; ++round) {
    StridedMap<int> map;
    Array array(size, 0);
    struct Owner {
      int64_t begin, stride, rows;
      std::vector<int64_t> cuts;
    };
    std::vector<Owner> owners;
    for (int64_t begin = 0; begin < 150;) {
      Owner owner{begin, 6 + static_cast<int64_t>(random() % 9), 1 + static_cast<int64_t>(random() % 5), {}};
      const int64_t first = 1 + static_cast<int64_t>(random() % 3);
      owner.cuts = {0, first, first + 2, owner.stride};
      begin += owner.stride * owner.rows + static_cast<int64_t>(random() % 2) * 5;
      owners.push_back(owner);
    }
    const auto part_of = [&](const Owner& owner) {
      const size_t from = random() % 3, to = from + 1 + random() % (3 - from);
      return StridedRange{owner.begin + owner.cuts[from], owner.cuts[to] - owner.cuts[from], owner.stride,
                          owner.rows};
    };
    // In every other round all is written over what is dead already: where its label stays does not matter.
    constexpr int dead = 1000;
    const bool fresh = round % 2 == 0;
    if (!fresh) {
      map.assign({0, size, 0, 1}, dead);
      array.assign(size, dead);
    }
    int label = 0;
    for (int step = 0; step < 25; ++step) {
      const StridedRange part = part_of(owners[random() % owners.size()]);
      map.assign(part, ++label);
      for_each_byte(part, [&](size_t i) { array[i] = label; });
      for (const Owner& owner : owners) {
        const StridedRange asked = part_of(owner);
        const int there = array[static_cast<size_t>(asked.begin)];
        if (there > 0 && there != dead) {
          ASSERT_EQ(all_are(map, asked, there), all_are(array, asked, there)) << round << " " << step;
        }
        if (!fresh) continue;
        bool all = true;
        for_each_byte(asked, [&](size_t i) { all = all && array[i] != 0; });
        ASSERT_EQ(!map.find(asked, [](const int* found) { return found == nullptr; }), all)
            << round << " " << step;
      }
    }
    if (!fresh) continue;
    // What it lists is what is there.
    Array listed(size, 0);
    map.visit_all([&](const StridedRange& range) { for_each_byte(range, [&](size_t i) { ++listed[i]; }); });
    for (size_t i = 0; i < listed.size(); ++i) ASSERT_EQ(listed[i], array[i] != 0 ? 1 : 0);
  }
}

// A product of query, key and value, then the queries turned in place: the others stay.
// The gap behind the last row may reach into memory that others use.
TEST(StridedMap, WhatLiesBehindTheLastRowKeepsItsLabel) {
  StridedMap<int> map;
  map.assign({0, 1000, 0, 1}, 1);
  map.assign({32, 8, 40, 10}, 2);  // of a value with rows of 40 bytes that begins at 0 and ends at 400
  map.assign({400, 100, 0, 1}, 1);
  map.assign({24, 8, 40, 10}, 3);
  EXPECT_TRUE(all_are(map, {400, 600, 0, 1}, 1));
  EXPECT_TRUE(all_are(map, {24, 8, 40, 10}, 3));
  EXPECT_TRUE(all_are(map, {32, 8, 40, 10}, 2));
}

TEST(StridedMap, PartsOfOnePieceKeepTheirLabel) {
  StridedMap<int> map;
  const int64_t rows = 1'000'000'000;
  map.assign({64, 24 * rows, 0, 1}, 1);
  map.assign({64, 8, 24, rows}, 2);
  map.assign({72, 8, 24, rows}, 3);
  EXPECT_TRUE(all_are(map, {64, 8, 24, rows}, 2));
  EXPECT_TRUE(all_are(map, {72, 8, 24, rows}, 3));
  EXPECT_TRUE(all_are(map, {80, 8, 24, rows}, 1));
  EXPECT_FALSE(all_are(map, {64, 16, 24, rows}, 2));
  EXPECT_FALSE(all_are(map, {64, 24 * rows, 0, 1}, 1));
  EXPECT_FALSE(map.find({64, 24 * rows, 0, 1}, [](const int* found) { return found == nullptr; }));
  EXPECT_TRUE(map.find({63, 2, 0, 1}, [](const int* found) { return found == nullptr; }));
}

}  // namespace
}  // namespace athanor
