#include "athanor/ir/dtype.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

namespace athanor {
namespace {

TEST(DType, NamesParseAndSizesAreThoseOfTheTypes) {
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(parse_dtype(name_of(dtype)), dtype);
  }
  EXPECT_EQ(parse_dtype("fp31"), std::nullopt);
  EXPECT_EQ(parse_dtype(""), std::nullopt);
  EXPECT_EQ(size_of(dtype_of<double>::value), sizeof(double));
  EXPECT_EQ(size_of(dtype_of<float>::value), sizeof(float));
  EXPECT_EQ(size_of(dtype_of<BFloat16>::value), sizeof(BFloat16));
  EXPECT_EQ(size_of(dtype_of<Float16>::value), sizeof(Float16));
  EXPECT_EQ(size_of(dtype_of<int64_t>::value), sizeof(int64_t));
  EXPECT_EQ(size_of(dtype_of<int32_t>::value), sizeof(int32_t));
  EXPECT_EQ(size_of(dtype_of<uint8_t>::value), sizeof(uint8_t));
  EXPECT_TRUE(is_float(DType::bf16));
  EXPECT_TRUE(is_float(DType::fp8_e4m3));
  EXPECT_FALSE(is_float(DType::int32));
  EXPECT_FALSE(is_float(DType::u8));
}

// The value of a 16-bit float by the definition of its fields, with `fraction_bits` of fraction.
double decode(uint16_t bits, int fraction_bits) {
  const int exponent_bits = 15 - fraction_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> fraction_bits) & ((1 << exponent_bits) - 1);
  const int fraction = bits & ((1 << fraction_bits) - 1);
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - fraction_bits);
  return sign * std::ldexp(fraction + (1 << fraction_bits), exponent - bias - fraction_bits);
}

// Every pattern decodes to its value and encodes back to itself.
template <class Half>
void check_all_patterns(int fraction_bits) {
  for (uint32_t pattern = 0; pattern < 0x10000; ++pattern) {
    Half half;
    half.bits = static_cast<uint16_t>(pattern);
    const auto value = static_cast<float>(half);
    const double expected = decode(half.bits, fraction_bits);
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(value)) << pattern;
      EXPECT_TRUE(std::isnan(static_cast<float>(Half(value)))) << pattern;
      continue;
    }
    ASSERT_EQ(static_cast<double>(value), expected) << pattern;
    ASSERT_EQ(std::signbit(value), (pattern & 0x8000) != 0) << pattern;
    ASSERT_EQ(Half(value).bits, half.bits) << pattern;
  }
}

// Between every two neighbours, below, at and above the middle: nearest, and ties to the even pattern. Above
// the largest finite value the next step counts as infinity.
template <class Half>
void check_rounding(int fraction_bits) {
  const auto infinity = static_cast<uint16_t>(((1 << (15 - fraction_bits)) - 1) << fraction_bits);
  for (uint16_t low = 0; low < infinity; ++low) {
    const auto high = static_cast<uint16_t>(low + 1);
    const double below = decode(low, fraction_bits);
    const double step =
        low == 0 ? decode(1, fraction_bits) : below - decode(static_cast<uint16_t>(low - 1), fraction_bits);
    const double above = high == infinity ? below + step : decode(high, fraction_bits);
    const auto middle = static_cast<float>((below + above) / 2);
    ASSERT_EQ(static_cast<double>(middle), (below + above) / 2) << low;
    const uint16_t even = low % 2 == 0 ? low : high;
    for (const float sign : {1.0F, -1.0F}) {
      const auto bits = [&](uint16_t magnitude) {
        return static_cast<uint16_t>(magnitude | (sign < 0 ? 0x8000 : 0));
      };
      ASSERT_EQ(Half(sign * middle).bits, bits(even)) << low;
      ASSERT_EQ(Half(sign * std::nextafter(middle, 0.0F)).bits, bits(low)) << low;
      ASSERT_EQ(Half(sign * std::nextafter(middle, HUGE_VALF)).bits, bits(high)) << low;
    }
  }
}

TEST(DType, AllPatternsOfFloat16ConvertThereAndBack) {
  check_all_patterns<Float16>(10);
}
TEST(DType, AllPatternsOfBFloat16ConvertThereAndBack) {
  check_all_patterns<BFloat16>(7);
}
TEST(DType, Float16RoundsToNearestEven) {
  check_rounding<Float16>(10);
}
TEST(DType, BFloat16RoundsToNearestEven) {
  check_rounding<BFloat16>(7);
}

TEST(DType, ExtremesOfFloat32BecomeInfinityOrZero) {
  EXPECT_EQ(Float16(3.4e38F).bits, 0x7c00);
  EXPECT_EQ(Float16(-HUGE_VALF).bits, 0xfc00);
  EXPECT_EQ(Float16(1e-44F).bits, 0);
  EXPECT_EQ(Float16(-1e-44F).bits, 0x8000);
  EXPECT_EQ(BFloat16(std::bit_cast<float>(0x7f7fffffU)).bits, 0x7f80);
  EXPECT_EQ(BFloat16(HUGE_VALF).bits, 0x7f80);
  // A NaN whose payload is in the bits that are cut off stays a NaN.
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001U)))));
  EXPECT_TRUE(std::isnan(static_cast<float>(Float16(std::bit_cast<float>(0xff800001U)))));
}

}  // namespace
}  // namespace athanor
