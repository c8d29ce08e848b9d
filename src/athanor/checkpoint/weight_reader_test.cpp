#include "athanor/checkpoint/weight_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "athanor/base/error.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/tensor_conversion.h"

namespace athanor {
namespace {

using testing::HasSubstr;

template <class T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto view = std::as_bytes(std::span(values));
  return {view.begin(), view.end()};
}

constexpr DType float_types[] = {DType::fp64, DType::fp32, DType::bf16, DType::fp16};

TEST(TensorConversion, ExactValuesPassThroughEveryPair) {
  // Few bits and small exponents: every type holds them.
  const std::vector<double> values = {0.0, -0.0, 1.0, -1.5, 0.25, 96.0, -0.0078125, 255.0};
  for (const DType from : float_types) {
    std::vector<std::byte> in(values.size() * size_of(from));
    EXPECT_EQ(convert_floats(DType::fp64, bytes_of(values), from, in), -1);
    for (const DType to : float_types) {
      std::vector<std::byte> out(values.size() * size_of(to));
      EXPECT_EQ(convert_floats(from, in, to, out), -1);
      for (size_t i = 0; i < values.size(); ++i) {
        const double value = float_at(to, out, static_cast<int64_t>(i));
        EXPECT_EQ(value, values[i]) << name_of(from) << " " << name_of(to);
        EXPECT_EQ(std::signbit(value), std::signbit(values[i]));
      }
    }
  }
}

TEST(TensorConversion, RoundsToNearestEven) {
  const std::vector<float> values = {1.0F + 0x1p-8F, 1.0F + 0x3p-8F, 1.0F + 0x1.01p-8F, 3.14159265F};
  std::vector<std::byte> out(values.size() * 2);
  convert_floats(DType::fp32, bytes_of(values), DType::bf16, out);
  const std::vector<double> expected = {1.0, 1.0 + 0x1p-6, 1.0 + 0x1p-7, 3.140625};
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_EQ(float_at(DType::bf16, out, static_cast<int64_t>(i)), expected[i]);
}

TEST(TensorConversion, WhatBecomesInfiniteIsFoundAndWhatWasIsNot) {
  const std::vector<double> values = {1, INFINITY, NAN, 65504, 65519, 65520, 1e39};
  const auto in = bytes_of(values);
  std::vector<std::byte> half(values.size() * 2), single(values.size() * 4);
  EXPECT_EQ(convert_floats(DType::fp64, in, DType::fp16, half), 5);
  EXPECT_EQ(float_at(DType::fp16, half, 4), 65504);
  EXPECT_EQ(convert_floats(DType::fp64, in, DType::fp32, single), 6);
  EXPECT_EQ(convert_floats(DType::fp32, single, DType::fp16, half), 5);
  EXPECT_EQ(first_non_finite(DType::fp64, in), 1);
  EXPECT_TRUE(std::isnan(float_at(DType::fp32, single, 2)));
  EXPECT_EQ(first_non_finite(DType::fp16, {}), -1);
}

TEST(TensorConversion, AsksForNoAlignment) {
  std::vector<std::byte> in(1 + 8), out(1 + 4);
  const double value = -2.5;
  std::memcpy(in.data() + 1, &value, 8);
  convert_floats(DType::fp64, std::span(in).subspan(1), DType::fp32, std::span(out).subspan(1));
  float result = 0;
  std::memcpy(&result, out.data() + 1, 4);
  EXPECT_EQ(result, -2.5F);
}

TEST(CheckpointWeights, AreReadByNameAndConverted) {
  MemoryFileEnvironment files;
  const std::vector<float> a = {1.5F, -2.0F, 70000.0F};
  const std::vector<int64_t> other = {3};
  CheckpointFolder folder(files, "run", {});
  const auto a_bytes = bytes_of(a), other_bytes = bytes_of(other);
  const std::vector<TensorBytes> tensors = {{"b", DType::fp32, {3, 1}, a_bytes},
                                            {"a", DType::int64, {}, other_bytes}};
  folder.save(3, tensors, {});
  const CheckpointWeights weights(Checkpoint::open(files, folder.path_of(3)));
  ASSERT_EQ(weights.entries().size(), 2U);
  EXPECT_EQ(weights.entries()[0].name, "a");
  EXPECT_EQ(weights.find("c"), nullptr);
  const WeightEntry* entry = weights.find("b");
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->elements(), 3);
  std::vector<double> read(3);
  weights.read(*entry, DType::fp64, std::as_writable_bytes(std::span(read)));
  EXPECT_EQ(read, (std::vector<double>{1.5, -2, 70000}));
  std::vector<uint16_t> half(3);
  try {
    weights.read(*entry, DType::fp16, std::as_writable_bytes(std::span(half)));
    ADD_FAILURE() << "70000 has no fp16";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("element 2 of b is 70000"));
  }
}

TEST(CheckpointWeights, LongTensorsAreReadInPieces) {
  MemoryFileEnvironment files;
  std::vector<float> values((size_t{1} << 19) * 2 + 7);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  const auto bytes = bytes_of(values);
  const std::vector<TensorBytes> tensors = {{"w", DType::fp32, {static_cast<int64_t>(values.size())}, bytes}};
  CheckpointFolder folder(files, "run", {});
  folder.save(1, tensors, {});
  const CheckpointWeights weights(Checkpoint::open(files, folder.path_of(1)));
  std::vector<double> read(values.size());
  weights.read(weights.entries()[0], DType::fp64, std::as_writable_bytes(std::span(read)));
  for (size_t i = 0; i < values.size(); ++i) ASSERT_EQ(read[i], static_cast<double>(values[i]));
}

}  // namespace
}  // namespace athanor
