// Tensors of any storage type, and runs on every instruction set and thread count, for the tests of the
// kernels. Called by tests only.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "athanor/base/philox.h"
#include "athanor/device/thread_team.h"
#include "athanor/kernels/cpu/rows.h"

// clang-format off: the first decides what the second declares.
#include "athanor/kernels/cpu/highway_targets.h"
#include <hwy/targets.h>
// clang-format on

namespace athanor::cpu::testing {

// [rows, features] in storage type `dtype`, with `padding` unused elements after each row.
struct Tensor {
  Tensor() = default;
  Tensor(DType type, int64_t row_count, int64_t feature_count, int64_t padding = 0)
      : dtype(type),
        rows(row_count),
        features(feature_count),
        stride(feature_count + padding),
        bytes(std::max<size_t>(1, static_cast<size_t>(rows * stride) * size_of(dtype)), std::byte{0x5a}) {}

  Rows view() { return {bytes.data(), dtype, stride}; }
  ConstRows view() const { return {bytes.data(), dtype, stride}; }

  double get(int64_t row, int64_t feature) const {
    const std::byte* at = view().at(row, feature).data;
    switch (dtype) {
      case DType::fp64:
        return *reinterpret_cast<const double*>(at);
      case DType::fp32:
        return static_cast<double>(*reinterpret_cast<const float*>(at));
      case DType::bf16:
        return static_cast<double>(static_cast<float>(*reinterpret_cast<const BFloat16*>(at)));
      case DType::fp16:
        return static_cast<double>(static_cast<float>(*reinterpret_cast<const Float16*>(at)));
      default:
        ADD_FAILURE() << "type";
        return 0;
    }
  }
  void set(int64_t row, int64_t feature, double value) {
    std::byte* at = view().at(row, feature).data;
    switch (dtype) {
      case DType::fp64:
        *reinterpret_cast<double*>(at) = value;
        break;
      case DType::fp32:
        *reinterpret_cast<float*>(at) = static_cast<float>(value);
        break;
      case DType::bf16:
        *reinterpret_cast<BFloat16*>(at) = BFloat16(static_cast<float>(value));
        break;
      case DType::fp16:
        *reinterpret_cast<Float16*>(at) = Float16(static_cast<float>(value));
        break;
      default:
        ADD_FAILURE() << "type";
    }
  }
  // Uniform in [low, high), the same for the same name.
  Tensor& fill(std::string_view name, double low = -2, double high = 2) {
    const RandomKey key(1, RandomPurpose::test, name);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t feature = 0; feature < features; ++feature) {
        const uint32_t word = random_word(key, static_cast<uint64_t>(row * features + feature));
        set(row, feature, low + (high - low) * static_cast<double>(uniform_float(word)));
      }
    }
    return *this;
  }
  template <class T>
  T* as() {
    return reinterpret_cast<T*>(bytes.data());
  }
  template <class T>
  const T* as() const {
    return reinterpret_cast<const T*>(bytes.data());
  }

  DType dtype = DType::fp32;
  int64_t rows = 0, features = 0, stride = 0;
  std::vector<std::byte> bytes;
};

// Half a unit in the last place of `dtype`, relative to the value, at most.
inline double rounding(DType dtype) {
  switch (dtype) {
    case DType::bf16:
      return 0x1p-8;
    case DType::fp16:
      return 0x1p-11;
    case DType::fp32:
      return 0x1p-24;
    default:
      return 0x1p-53;
  }
}

// |actual - expected| <= relative * |expected| + absolute, plus one rounding of the storage type.
inline void expect_close(const Tensor& actual, const std::function<double(int64_t, int64_t)>& expected,
                         double relative, double absolute, const std::string& what) {
  const double tolerance = relative + 1.01 * rounding(actual.dtype);
  if (actual.dtype == DType::fp16) absolute += 0x1p-25;  // half a subnormal step
  for (int64_t row = 0; row < actual.rows; ++row) {
    for (int64_t feature = 0; feature < actual.features; ++feature) {
      const double want = expected(row, feature), got = actual.get(row, feature);
      if (std::isnan(want) && std::isnan(got)) continue;
      if (want == got) continue;
      ASSERT_LE(std::abs(got - want), tolerance * std::abs(want) + absolute)
          << what << ": row " << row << " feature " << feature << " is " << got << ", not " << want;
    }
  }
}

// The padding of a strided output must not be written.
inline void expect_padding_untouched(const Tensor& tensor) {
  const size_t size = size_of(tensor.dtype);
  for (int64_t row = 0; row < tensor.rows; ++row) {
    const auto begin = static_cast<size_t>(row * tensor.stride + tensor.features) * size;
    const auto end = static_cast<size_t>((row + 1) * tensor.stride) * size;
    for (size_t i = begin; i < end; ++i) ASSERT_EQ(tensor.bytes[i], std::byte{0x5a}) << "padding written";
  }
}

// Calls run(team) -> outputs on every instruction set of this machine with teams of 1, 2 and 3 threads. The
// bits must not depend on the team; check(outputs) is called once for each instruction set.
inline void on_every_target(const std::function<std::vector<Tensor>(ThreadTeam&)>& run,
                            const std::function<void(const std::vector<Tensor>&)>& check) {
  static ThreadTeam one(1), two(2), three(3);
  for (const int64_t target : hwy::SupportedAndGeneratedTargets()) {
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    const std::vector<Tensor> outputs = run(one);
    for (ThreadTeam* team : {&two, &three}) {
      const std::vector<Tensor> others = run(*team);
      ASSERT_EQ(outputs.size(), others.size());
      for (size_t i = 0; i < outputs.size(); ++i)
        ASSERT_TRUE(outputs[i].bytes == others[i].bytes)
            << "output " << i << " differs with " << team->size() << " threads";
    }
    for (const Tensor& output : outputs) expect_padding_untouched(output);
    check(outputs);
    if (::testing::Test::HasFatalFailure()) break;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

// Scratch as an executor gives it: aligned to a cache line, full of garbage.
inline std::span<std::byte> scratch_of(int64_t bytes) {
  static std::vector<std::byte> memory;
  memory.assign(static_cast<size_t>(bytes) + 64, std::byte{0x7f});
  const auto at = reinterpret_cast<uintptr_t>(memory.data());
  return {memory.data() + (64 - at % 64) % 64, static_cast<size_t>(bytes)};
}

inline constexpr DType storage_types[] = {DType::fp32, DType::bf16, DType::fp16};

}  // namespace athanor::cpu::testing
