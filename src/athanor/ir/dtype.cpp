#include "athanor/ir/dtype.h"

#include <array>

namespace athanor {

namespace {
constexpr std::array<std::string_view, dtype_count> names = {"fp64",     "fp32",  "bf16",  "fp16", "fp8_e4m3",
                                                             "fp8_e5m2", "int64", "int32", "u8"};
}  // namespace

std::string_view name_of(DType dtype) {
  return names[static_cast<size_t>(dtype)];
}

std::optional<DType> parse_dtype(std::string_view name) {
  for (size_t i = 0; i < names.size(); ++i) {
    if (names[i] == name) return static_cast<DType>(i);
  }
  return std::nullopt;
}

bool is_float(DType dtype) {
  return dtype != DType::int64 && dtype != DType::int32 && dtype != DType::u8;
}

Float16::Float16(float value) {
  const auto word = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((word >> 16) & 0x8000U);
  const uint32_t magnitude = word & 0x7fffffffU;
  if (magnitude > 0x7f800000U) {  // NaN
    bits = static_cast<uint16_t>(sign | 0x7e00U);
  } else if (magnitude >= 0x477ff000U) {  // rounds to infinity
    bits = static_cast<uint16_t>(sign | 0x7c00U);
  } else if (magnitude < 0x38800000U) {  // subnormal half or zero: the addition aligns and rounds
    const float aligned = std::bit_cast<float>(magnitude) + std::bit_cast<float>(0x3f000000U);
    bits = static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(aligned) - 0x3f000000U));
  } else {
    const uint32_t odd = (magnitude >> 13) & 1U;
    bits = static_cast<uint16_t>(sign | ((magnitude + 0xc8000fffU + odd) >> 13));
  }
}

Float16::operator float() const {
  const uint32_t sign = static_cast<uint32_t>(bits & 0x8000U) << 16;
  const uint32_t exponent = (bits >> 10) & 0x1fU, fraction = bits & 0x3ffU;
  if (exponent == 0x1fU) return std::bit_cast<float>(sign | 0x7f800000U | (fraction << 13));
  if (exponent == 0) {
    const float magnitude = static_cast<float>(fraction) * std::bit_cast<float>(0x33800000U);  // 2^-24
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112U) << 23) | (fraction << 13));
}

}  // namespace athanor
