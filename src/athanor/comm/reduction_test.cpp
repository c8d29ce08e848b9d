#include "athanor/comm/reduction.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "athanor/comm/comm_test_support.h"

namespace athanor {
namespace {

std::vector<double> combined(CollectiveReduction reduction, DType dtype,
                             const std::vector<std::vector<double>>& values) {
  std::vector<std::vector<std::byte>> storage;
  std::vector<CombineSource> sources;
  for (const auto& each : values) storage.push_back(encode(dtype, each));
  for (const auto& each : storage) sources.push_back({each.data(), dtype});
  std::vector<std::byte> target(storage[0].size());
  // Everywhere the same, at places that are aligned to the type alone.
  std::vector<std::byte> other(target.size() + size_of(dtype));
  std::byte* const targets[] = {target.data(), other.data() + size_of(dtype)};
  combine(sources, reduction, accumulator_of(dtype), dtype, targets, static_cast<int64_t>(values[0].size()));
  EXPECT_TRUE(
      std::equal(target.begin(), target.end(), other.begin() + static_cast<ptrdiff_t>(size_of(dtype))));
  return decode(dtype, target);
}

TEST(Combine, SumsAndTakesTheLargest) {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16, DType::int64, DType::int32})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1024}, size_t{50257}})
      for (const size_t sources : {size_t{1}, size_t{2}, size_t{3}, size_t{5}, size_t{17}}) {
        std::vector<std::vector<double>> values(sources, std::vector<double>(count));
        std::vector<double> sum(count, 0), largest(count, -1e9);
        for (size_t s = 0; s < sources; ++s)
          for (size_t i = 0; i < count; ++i) {
            values[s][i] = static_cast<double>((i * 7 + s * 5) % 13) - 6;
            sum[i] += values[s][i];
            largest[i] = std::max(largest[i], values[s][i]);
          }
        EXPECT_EQ(combined(CollectiveReduction::sum, dtype, values), sum) << name_of(dtype) << " " << count;
        EXPECT_EQ(combined(CollectiveReduction::max, dtype, values), largest)
            << name_of(dtype) << " " << count;
      }
}

TEST(Combine, SumsFromFirstToLast) {
  EXPECT_EQ(combined(CollectiveReduction::sum, DType::fp32, {{1e8}, {-1e8}, {1}}), std::vector<double>{1});
  EXPECT_EQ(combined(CollectiveReduction::sum, DType::fp32, {{1}, {1e8}, {-1e8}}), std::vector<double>{0});
}

TEST(Combine, RoundsOnce) {
  // 256 + 1 + 1 in bf16 steps would stay at 256.
  EXPECT_EQ(combined(CollectiveReduction::sum, DType::bf16, {{256}, {1}, {1}}), std::vector<double>{258});
}

TEST(Combine, TheLargestOfNothingANumberIsNotANumber) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16})
    for (const auto& values : {std::vector<std::vector<double>>{{nan}, {1}}, {{1}, {nan}}, {{1}, {nan}, {2}}})
      EXPECT_TRUE(std::isnan(combined(CollectiveReduction::max, dtype, values)[0]));
}

TEST(Combine, IntegersWrap) {
  EXPECT_EQ(combined(CollectiveReduction::sum, DType::int32, {{2147483647.0}, {1}}),
            std::vector<double>{-2147483648.0});
}

// As the ranks of a group do in place: every source is a target too.
TEST(Combine, TargetsMayBeSources) {
  for (const int64_t count : {3, 64, 1000}) {
    std::vector<std::vector<float>> values(3, std::vector<float>(static_cast<size_t>(count)));
    for (int64_t i = 0; i < count; ++i)
      for (size_t s = 0; s < 3; ++s)
        values[s][static_cast<size_t>(i)] = static_cast<float>(i) * std::pow(10.0F, static_cast<float>(s));
    std::vector<CombineSource> sources;
    std::vector<std::byte*> targets;
    for (auto& each : values) {
      targets.push_back(reinterpret_cast<std::byte*>(each.data()));
      sources.push_back({targets.back(), DType::fp32});
    }
    std::swap(targets[0], targets[1]);
    combine(sources, CollectiveReduction::sum, DType::fp32, DType::fp32, targets, count);
    for (const auto& each : values)
      for (int64_t i = 0; i < count; ++i)
        ASSERT_EQ(each[static_cast<size_t>(i)], static_cast<float>(111 * i));
  }
}

}  // namespace
}  // namespace athanor
