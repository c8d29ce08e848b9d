#include "athanor/kernels/cpu/activation.h"

#include <gtest/gtest.h>

#include <numbers>

#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::expect_close;
using testing::on_every_target;
using testing::storage_types;
using testing::Tensor;

struct Extent {
  int64_t rows, features, padding;
};
constexpr Extent extents[] = {{0, 7, 0}, {1, 1, 0}, {7, 33, 0}, {33, 7, 5}, {1, 50257, 3}};

double sigmoid_of(double x) {
  return 1 / (1 + std::exp(-x));
}

double gelu_of(double x) {
  return x / 2 * (1 + std::tanh(std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  const double t = std::tanh(root * (x + 0.044715 * x * x * x));
  return (1 + t) / 2 + x / 2 * (1 - t * t) * root * (1 + 3 * 0.044715 * x * x);
}

TEST(Activation, Gelu) {
  for (const DType dtype : storage_types) {
    for (const Extent& e : extents) {
      const Tensor x = Tensor(dtype, e.rows, e.features, e.padding).fill("x", -9, 9);
      const Tensor dy = Tensor(dtype, e.rows, e.features, 2 * e.padding).fill("dy");
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor y(dtype, e.rows, e.features, e.padding), dx = dy, in_place = x;
            gelu(team, e.rows, e.features, x.view(), y.view());
            gelu(team, e.rows, e.features, in_place.view(), in_place.view());
            gelu_gradient(team, e.rows, e.features, dx.view(), x.view(), dx.view());
            return std::vector{y, in_place, dx};
          },
          [&](const std::vector<Tensor>& out) {
            for (size_t i = 0; i < 2; ++i)
              expect_close(
                  out[i], [&](int64_t r, int64_t f) { return gelu_of(x.get(r, f)); }, 1e-6, 2e-6, "y");
            expect_close(
                out[2], [&](int64_t r, int64_t f) { return dy.get(r, f) * gelu_slope(x.get(r, f)); }, 2e-6,
                2e-6, "dx");
          });
    }
  }
}

TEST(Activation, ExtremesStayFinite) {
  Tensor x(DType::fp32, 1, 8), ones(DType::fp32, 1, 8);
  const double values[] = {0, -0.0, 1e-30, -1e-30, 100, -100, 1e4, -1e4};
  for (int64_t f = 0; f < 8; ++f) {
    x.set(0, f, values[f]);
    ones.set(0, f, 1);
  }
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor y = x, dx = x, dgate = x, dup = x;
        gelu(team, 1, 8, x.view(), y.view());
        gelu_gradient(team, 1, 8, ones.view(), x.view(), dx.view());
        swiglu_gradient(team, 1, 8, ones.view(), x.view(), ones.view(), dgate.view(), dup.view());
        return std::vector{y, dx, dgate, dup};
      },
      [&](const std::vector<Tensor>& out) {
        for (int64_t f = 0; f < 8; ++f) {
          EXPECT_NEAR(out[0].get(0, f), gelu_of(values[f]), 1e-6 * std::abs(values[f]));
          EXPECT_NEAR(out[1].get(0, f), f < 4 ? 0.5 : (values[f] > 0 ? 1 : 0), 1e-6);
          EXPECT_NEAR(out[2].get(0, f), f < 4 ? 0.5 : (values[f] > 0 ? 1 : 0), 1e-6);
          EXPECT_NEAR(out[3].get(0, f), values[f] * sigmoid_of(values[f]), 1e-6 * std::abs(values[f]));
        }
      });
}

TEST(Activation, NotANumberPassesThrough) {
  const float values[] = {std::nanf(""), 1.0F, std::nanf("")};
  on_every_target(
      [&](ThreadTeam& team) {
        Tensor y(DType::fp32, 1, 3);
        gelu(team, 1, 3, rows_of(values, 3), y.view());
        return std::vector{y};
      },
      [](const std::vector<Tensor>& out) {
        EXPECT_TRUE(std::isnan(out[0].get(0, 0)));
        EXPECT_FALSE(std::isnan(out[0].get(0, 1)));
        EXPECT_TRUE(std::isnan(out[0].get(0, 2)));
      });
}

TEST(Activation, Swiglu) {
  for (const DType dtype : storage_types) {
    for (const Extent& e : extents) {
      // gate and up side by side in one row, as a fused product leaves them.
      const Tensor both = Tensor(dtype, e.rows, 2 * e.features, e.padding).fill("both", -9, 9);
      const Tensor dy = Tensor(dtype, e.rows, e.features, e.padding).fill("dy");
      const ConstRows gate = both.view();
      const ConstRows up{both.view().at(0, e.features).data, dtype, both.stride};
      const auto g = [&](int64_t r, int64_t f) { return both.get(r, f); };
      const auto u = [&](int64_t r, int64_t f) { return both.get(r, e.features + f); };
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor y(dtype, e.rows, e.features, e.padding), d(dtype, e.rows, 2 * e.features, e.padding);
            swiglu(team, e.rows, e.features, gate, up, y.view());
            swiglu_gradient(team, e.rows, e.features, dy.view(), gate, up, d.view(),
                            {d.view().at(0, e.features).data, dtype, d.stride});
            return std::vector{y, d};
          },
          [&](const std::vector<Tensor>& out) {
            expect_close(
                out[0], [&](int64_t r, int64_t f) { return g(r, f) * sigmoid_of(g(r, f)) * u(r, f); }, 2e-6,
                2e-6, "y");
            expect_close(
                out[1],
                [&](int64_t r, int64_t f) {
                  const bool of_gate = f < e.features;
                  const int64_t feature = of_gate ? f : f - e.features;
                  const double s = sigmoid_of(g(r, feature)), d = dy.get(r, feature);
                  return of_gate ? d * u(r, feature) * s * (1 + g(r, feature) * (1 - s))
                                 : d * g(r, feature) * s;
                },
                2e-6, 1e-5, "dgate, dup");
          });
    }
  }
}

}  // namespace
}  // namespace athanor::cpu
