#include "athanor/kernels/cpu/rotary.h"

#include <gtest/gtest.h>

#include <numbers>

#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::scratch_of;
using testing::storage_types;
using testing::Tensor;

TEST(Rotary, TurnsHalvesByPosition) {
  struct Case {
    int64_t tokens, heads, features;
  };
  for (const DType dtype : storage_types) {
    for (const Case& c : {Case{0, 2, 8}, Case{1, 1, 2}, Case{33, 3, 14}, Case{7, 2, 64}, Case{9, 1, 256}}) {
      const int64_t width = c.heads * c.features;
      const Tensor x = Tensor(dtype, c.tokens, width, 5).fill("x");
      std::vector<int32_t> positions;
      for (int64_t t = 0; t < c.tokens; ++t)
        positions.push_back(static_cast<int32_t>(t % 2 == 0 ? t * 997 : 1000000 - t));
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor y(dtype, c.tokens, width, 2);
            auto scratch = scratch_of(rotary_workspace_bytes(c.heads, c.features, team.size()));
            Rotary a{.tokens = c.tokens,
                     .heads = c.heads,
                     .head_features = c.features,
                     .x = x.view(),
                     .y = y.view(),
                     .positions = positions.data()};
            rotary(team, a, scratch.data());
            Tensor back = y;  // the inverse turns back, in place
            a.x = back.view();
            a.y = back.view();
            a.options.inverse = true;
            rotary(team, a, scratch.data());
            return std::vector{y, back};
          },
          [&](const std::vector<Tensor>& out) {
            const int64_t half = c.features / 2;
            expect_close(
                out[0],
                [&](int64_t t, int64_t f) {
                  const int64_t i = f % c.features, pair = i % half, head = f - i;
                  const double angle =
                      positions[static_cast<size_t>(t)] *
                      std::pow(10000.0, -2.0 * static_cast<double>(pair) / static_cast<double>(c.features));
                  const double left = x.get(t, head + pair), right = x.get(t, head + half + pair);
                  return i < half ? left * std::cos(angle) - right * std::sin(angle)
                                  : right * std::cos(angle) + left * std::sin(angle);
                },
                0, 1e-6, "y");
            expect_close(
                out[1], [&](int64_t t, int64_t f) { return x.get(t, f); }, 0,
                1e-6 + 4 * testing::rounding(dtype), "turned back");
          });
    }
  }
}

TEST(Rotary, FrequenciesOfLlama31) {
  // Wavelengths below 8192 / 4 stay, above 8192 / 1 are stretched 8 times, and between there is no jump.
  const RotaryOptions options{
      .theta = 500000, .factor = 8, .low_frequency = 1, .high_frequency = 4, .original_positions = 8192};
  double scaled[64], plain[64];
  rotary_frequencies(options, 128, scaled);
  rotary_frequencies({.theta = 500000}, 128, plain);
  for (int i = 0; i < 64; ++i) {
    EXPECT_NEAR(plain[i], std::pow(500000.0, -i / 64.0), 1e-15);
    const double wavelength = 2 * std::numbers::pi / plain[i];
    double expected = plain[i];
    if (wavelength > 8192.0) {
      expected = plain[i] / 8;
    } else if (wavelength > 2048.0) {
      const double smooth = (8192 / wavelength - 1) / 3;
      expected = (1 - smooth) * plain[i] / 8 + smooth * plain[i];
    }
    EXPECT_NEAR(scaled[i], expected, 1e-12 * expected) << i;
    if (i > 0) {
      EXPECT_LT(scaled[i], scaled[i - 1]);
    }
  }
  EXPECT_EQ(scaled[0], 1);
  EXPECT_NEAR(scaled[63] * 8, plain[63], 1e-20);
}

}  // namespace
}  // namespace athanor::cpu
