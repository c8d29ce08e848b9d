#include "athanor/comm/reduction.h"

#include <gtest/gtest.h>

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
  combine(sources, reduction, accumulator_of(dtype), dtype, target.data(),
          static_cast<int64_t>(values[0].size()));
  return decode(dtype, target);
}

TEST(Combine, SumsAndTakesTheLargest) {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16, DType::int64, DType::int32})
    for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{1024}, size_t{50257}})
      for (const size_t sources : {size_t{1}, size_t{2}, size_t{3}, size_t{5}}) {
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

TEST(Combine, TheTargetMayBeASource) {
  std::vector<float> a{1, 2, 3}, b{10, 20, 30}, c{100, 200, 300};
  const auto bytes = [](std::vector<float>& v) { return reinterpret_cast<std::byte*>(v.data()); };
  const std::vector<CombineSource> sources{
      {bytes(a), DType::fp32}, {bytes(b), DType::fp32}, {bytes(c), DType::fp32}};
  combine(sources, CollectiveReduction::sum, DType::fp32, DType::fp32, bytes(b), 3);
  EXPECT_EQ(b, (std::vector<float>{111, 222, 333}));
}

}  // namespace
}  // namespace athanor
