#include "athanor/base/philox.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>
#include <vector>

namespace athanor {
namespace {

using Words = std::array<uint32_t, 4>;

// The known-answer vectors published with the paper's Random123 library.
static_assert(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
static_assert(philox4x32({0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff}, {0xffffffff, 0xffffffff}) ==
              Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
// Counter and key from the digits of pi.
static_assert(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
              Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});

TEST(Philox, KnownAnswersAtRunTimeToo) {
  volatile uint32_t zero = 0;  // keeps the compiler from folding the call
  EXPECT_EQ(philox4x32({zero, zero, zero, zero}, {zero, zero}),
            (Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
}

TEST(Philox, HashAndKeysAreFrozen) {
  // Changing any of these changes what a seed means for every existing run.
  EXPECT_EQ(stable_hash(""), mix64(0xCBF29CE484222325u));
  EXPECT_EQ(stable_hash("a"), mix64(0xAF63DC4C8601EC8Cu));       // FNV-1a's published vector for "a"
  EXPECT_EQ(stable_hash("foobar"), mix64(0x85944171F73967E8u));  // and for "foobar"
  EXPECT_EQ(mix64(0x9E3779B97F4A7C15u), 0xE220A8397B1DCDAFu);    // first output of splitmix64(0)
}

TEST(Philox, EveryPartOfTheKeyMatters) {
  std::set<Words> seen;
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}}) {
    for (const RandomPurpose purpose : {RandomPurpose::initial_weights, RandomPurpose::dropout}) {
      for (const char* name : {"", "block.0.query", "block.1.query"}) {
        for (const uint64_t step : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
          for (const uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32}) {
            seen.insert(random_block(RandomKey(seed, purpose, name, step), index));
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), size_t{4 * 2 * 3 * 3 * 3});
}

TEST(Philox, WordOfElementIsWordOfBlock) {
  const RandomKey key(7, RandomPurpose::test, "words");
  for (uint64_t element = 0; element < 9; ++element) {
    EXPECT_EQ(random_word(key, element), random_block(key, element / 4)[element % 4]);
  }
}

TEST(Philox, UniformRanges) {
  static_assert(uniform_float(0) == 0.0f && uniform_float(0xffffffffu) == 1.0f - 0x1p-24f);
  static_assert(uniform_double(0, 0) == 0.0 && uniform_double(0xffffffffu, 0xffffffffu) == 1.0 - 0x1p-53);
  static_assert(uniform_double(0, 0x80000000u) == 0.5);
  const RandomKey key(1, RandomPurpose::test, "uniform");
  double sum = 0, sum_of_squares = 0;
  const int count = 1 << 16;
  for (uint64_t i = 0; i < count; ++i) {
    const double value = static_cast<double>(uniform_float(random_word(key, i)));
    sum += value;
    sum_of_squares += value * value;
  }
  // Five standard deviations of the mean (0.289 / sqrt n) and of the mean square (0.298 / sqrt n).
  EXPECT_NEAR(sum / count, 0.5, 5 * 0.289 / 256);
  EXPECT_NEAR(sum_of_squares / count, 1.0 / 3, 5 * 0.299 / 256);
}

TEST(Philox, UniformBelowIsTheHighHalfOfTheProduct) {
  static_assert(uniform_below(0xffffffffu, 0xffffffffu, 10) == 9 && uniform_below(0, 0, 10) == 0);
  static_assert(uniform_below(0, 0x80000000u, 50257) == 25128);
  static_assert(uniform_below(0xffffffffu, 0xffffffffu, ~uint64_t{0}) == ~uint64_t{0} - 1);
  const RandomKey key(2, RandomPurpose::test, "below");
  for (uint64_t i = 0; i < 1000; ++i) {
    const auto block = random_block(key, i);
    const uint64_t bound = (uint64_t{block[2]} << (i % 32)) + 1;
    __extension__ using Wide = unsigned __int128;
    const Wide product = static_cast<Wide>((uint64_t{block[1]} << 32) | block[0]) * bound;
    ASSERT_EQ(uniform_below(block[0], block[1], bound), static_cast<uint64_t>(product >> 64));
  }
}

TEST(Philox, NormalMoments) {
  const RandomKey key(3, RandomPurpose::initial_weights, "normal");
  const size_t count = 1 << 17;
  std::vector<double> values(count);
  fill_normal(key, 0, 1.0, values.data(), count);
  double moments[5] = {};
  for (const double value : values) {
    double power = 1;
    for (double& moment : moments) {
      moment += power / static_cast<double>(count);
      power *= value;
    }
  }
  const double bound = 5 / std::sqrt(static_cast<double>(count));
  EXPECT_NEAR(moments[1], 0, bound);
  EXPECT_NEAR(moments[2], 1, bound * std::sqrt(2.0));
  EXPECT_NEAR(moments[3], 0, bound * std::sqrt(15.0));
  EXPECT_NEAR(moments[4], 3, bound * std::sqrt(96.0));
  // The two numbers of a pair are independent.
  double product = 0;
  for (size_t i = 0; i < count; i += 2) product += values[i] * values[i + 1] / static_cast<double>(count / 2);
  EXPECT_NEAR(product, 0, bound * std::sqrt(2.0));
}

TEST(Philox, ExtremeWordsGiveFiniteNormals) {
  for (const uint32_t low : {0u, 0xffffffffu}) {
    for (const uint32_t high : {0u, 0xffffffffu}) {
      for (const double value : normal_pair({low, low, high, high})) EXPECT_TRUE(std::isfinite(value));
      for (const double value : normal_pair({low, high, low, high})) EXPECT_LT(std::abs(value), 8.6);
    }
  }
}

TEST(Philox, FillDoesNotDependOnWhereItStarts) {
  const RandomKey key(4, RandomPurpose::initial_weights, "fill");
  std::vector<double> whole(101);
  fill_normal(key, 0, 0.5, whole.data(), whole.size());
  for (size_t i = 0; i < whole.size(); ++i) EXPECT_EQ(whole[i], 0.5 * random_normal(key, i));
  for (const size_t first : {size_t{1}, size_t{2}, size_t{33}}) {
    std::vector<float> part(7);
    fill_normal(key, first, 0.5, part.data(), part.size());
    for (size_t i = 0; i < part.size(); ++i) EXPECT_EQ(part[i], static_cast<float>(whole[first + i]));
  }
  fill_normal(key, 5, 1.0, whole.data(), 0);  // nothing to write is fine
}

}  // namespace
}  // namespace athanor
