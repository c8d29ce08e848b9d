#include "athanor/kernels/cpu/elementwise.h"

#include <gtest/gtest.h>

#include <limits>

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
constexpr Extent extents[] = {{0, 7, 0},  {3, 0, 0},     {1, 1, 0},   {7, 33, 0},
                              {33, 7, 5}, {1, 20011, 3}, {5, 1024, 0}};

TEST(Elementwise, CastBetweenAllTypes) {
  for (const DType from : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
    for (const DType to : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
      for (const Extent& e : extents) {
        const Tensor x = Tensor(from, e.rows, e.features, e.padding).fill("cast");
        on_every_target(
            [&](ThreadTeam& team) {
              Tensor y(to, e.rows, e.features, e.padding / 2);
              cast(team, e.rows, e.features, x.view(), y.view());
              return std::vector{y};
            },
            [&](const std::vector<Tensor>& out) {
              const double way = from == DType::fp64 && to != DType::fp64 ? 0x1p-24 : 0;
              expect_close(out[0], [&](int64_t r, int64_t f) { return x.get(r, f); }, way, 0, "cast");
            });
      }
    }
  }
}

TEST(Elementwise, CastRoundsAsTheStorageTypesDo) {
  // Ties, subnormal halves, overflow, infinities, NaN: vector code must give the bits of the scalar types.
  std::vector<float> values = {0.0F,
                               -0.0F,
                               1.0F,
                               1.00390625F,
                               1.01171875F,
                               65504.0F,
                               65519.9F,
                               65520.0F,
                               1e30F,
                               -1e30F,
                               3e-8F,
                               2.9e-8F,
                               6e-8F,
                               5.9e-5F,
                               1e-40F,
                               3.4028234e38F,
                               std::numeric_limits<float>::infinity(),
                               -std::numeric_limits<float>::infinity(),
                               0.33333334F,
                               1.00048828125F,
                               1.00146484375F};
  while (values.size() % 16 != 3) values.push_back(-1.7F);
  const auto count = static_cast<int64_t>(values.size());
  values.push_back(std::numeric_limits<float>::quiet_NaN());
  for (int repeat = 0; repeat < 20; ++repeat) values.push_back(std::numeric_limits<float>::quiet_NaN());
  const auto all = static_cast<int64_t>(values.size());
  for (const DType to : {DType::bf16, DType::fp16}) {
    on_every_target(
        [&](ThreadTeam& team) {
          Tensor y(to, 1, all);
          cast(team, 1, all, rows_of(values.data(), all), y.view());
          return std::vector{y};
        },
        [&](const std::vector<Tensor>& out) {
          for (int64_t i = 0; i < all; ++i) {
            if (i >= count) {
              EXPECT_TRUE(std::isnan(out[0].get(0, i)));
              continue;
            }
            const float value = values[static_cast<size_t>(i)];
            const uint16_t want = to == DType::bf16 ? BFloat16(value).bits : Float16(value).bits;
            EXPECT_EQ(out[0].as<uint16_t>()[i], want) << value;
          }
        });
  }
}

TEST(Elementwise, AddTakesEveryMixture) {
  for (const DType a_type : storage_types) {
    for (const DType b_type : storage_types) {
      for (const Extent& e : extents) {
        const Tensor a = Tensor(a_type, e.rows, e.features, e.padding).fill("a");
        const Tensor b = Tensor(b_type, e.rows, e.features, 2 * e.padding).fill("b");
        on_every_target(
            [&](ThreadTeam& team) {
              Tensor y(a_type, e.rows, e.features, e.padding);
              add(team, e.rows, e.features, a.view(), b.view(), y.view());
              Tensor in_place = a;
              add(team, e.rows, e.features, in_place.view(), b.view(), in_place.view());
              return std::vector{y, in_place};
            },
            [&](const std::vector<Tensor>& out) {
              for (const Tensor& y : out)
                expect_close(
                    y, [&](int64_t r, int64_t f) { return a.get(r, f) + b.get(r, f); }, 0x1p-24, 0, "add");
            });
      }
    }
  }
}

TEST(Elementwise, ScaleAndZero) {
  for (const DType dtype : storage_types) {
    for (const Extent& e : extents) {
      const Tensor x = Tensor(dtype, e.rows, e.features, e.padding).fill("x");
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor y(dtype, e.rows, e.features, e.padding), z(dtype, e.rows, e.features, e.padding);
            scale(team, e.rows, e.features, x.view(), 0.375F, y.view());
            fill_zero(team, e.rows, e.features, z.view());
            return std::vector{y, z};
          },
          [&](const std::vector<Tensor>& out) {
            expect_close(
                out[0], [&](int64_t r, int64_t f) { return 0.375 * x.get(r, f); }, 0x1p-24, 0, "scale");
            expect_close(out[1], [](int64_t, int64_t) { return 0.0; }, 0, 0, "zero");
          });
    }
  }
}

}  // namespace
}  // namespace athanor::cpu
