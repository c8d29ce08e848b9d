// Element types and the two 16-bit float storage types.
//
// Called by every room that touches tensors. Thread safety: values and pure functions.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace athanor {

enum class DType : uint8_t { fp64, fp32, bf16, fp16, fp8_e4m3, fp8_e5m2, int64, int32, u8 };
inline constexpr int dtype_count = 9;

std::string_view name_of(DType dtype);  // "fp64", "bf16", ...
std::optional<DType> parse_dtype(std::string_view name);
bool is_float(DType dtype);

constexpr size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::fp64:
    case DType::int64:
      return 8;
    case DType::fp32:
    case DType::int32:
      return 4;
    case DType::bf16:
    case DType::fp16:
      return 2;
    default:
      return 1;
  }
}

// bfloat16: the upper half of an fp32. Conversion rounds to nearest even; NaN stays NaN.
struct BFloat16 {
  uint16_t bits = 0;
  BFloat16() = default;
  explicit constexpr BFloat16(float value) {
    const auto word = std::bit_cast<uint32_t>(value);
    if ((word & 0x7fffffffU) > 0x7f800000U) {
      bits = static_cast<uint16_t>((word >> 16) | 0x40U);
    } else {
      bits = static_cast<uint16_t>((word + 0x7fffU + ((word >> 16) & 1U)) >> 16);
    }
  }
  explicit constexpr operator float() const {
    return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  }
};

// IEEE binary16. Conversion rounds to nearest even; overflow gives infinity.
struct Float16 {
  uint16_t bits = 0;
  Float16() = default;
  explicit Float16(float value);
  explicit operator float() const;
};

// The DType that stores a C++ type.
template <class T>
struct dtype_of;
template <>
struct dtype_of<double> {
  static constexpr DType value = DType::fp64;
};
template <>
struct dtype_of<float> {
  static constexpr DType value = DType::fp32;
};
template <>
struct dtype_of<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of<Float16> {
  static constexpr DType value = DType::fp16;
};
template <>
struct dtype_of<int64_t> {
  static constexpr DType value = DType::int64;
};
template <>
struct dtype_of<int32_t> {
  static constexpr DType value = DType::int32;
};
template <>
struct dtype_of<uint8_t> {
  static constexpr DType value = DType::u8;
};

}  // namespace athanor
