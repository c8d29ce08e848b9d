#include "athanor/kernels/cpu/reduction.h"

#include <gtest/gtest.h>

#include <limits>

#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::on_every_target;
using testing::scratch_of;
using testing::storage_types;
using testing::Tensor;

struct Extent {
  int64_t rows, features, padding;
};
constexpr Extent extents[] = {{0, 7, 0},     {1, 0, 0},     {1, 1, 0},   {33, 7, 3},
                              {3, 50257, 1}, {1, 50257, 0}, {4096, 1, 0}};

TEST(Reduction, SumsInDouble) {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
    for (const Extent& e : extents) {
      const Tensor x = Tensor(dtype, e.rows, e.features, e.padding).fill("x", 0, 3);
      double want = 0;
      for (int64_t r = 0; r < e.rows; ++r) {
        for (int64_t f = 0; f < e.features; ++f) want += x.get(r, f);
      }
      on_every_target(
          [&](ThreadTeam& team) {
            Tensor total(DType::fp64, 1, 2);
            total.set(0, 0, 10);
            auto scratch = scratch_of(sum_workspace_bytes(e.rows, e.features));
            sum(team, e.rows, e.features, x.view(), total.as<double>(), true, scratch.data());
            sum(team, e.rows, e.features, x.view(), total.as<double>() + 1, false, scratch.data());
            return std::vector{total};
          },
          [&](const std::vector<Tensor>& out) {
            EXPECT_NEAR(out[0].get(0, 0), want + 10, 1e-6 * want);
            EXPECT_NEAR(out[0].get(0, 1), want, 1e-6 * want);
          });
    }
  }
}

TEST(Reduction, FindsTheFirstNumberThatIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity(),
               nan = std::numeric_limits<double>::quiet_NaN();
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16}) {
    for (const Extent& e : extents) {
      Tensor x = Tensor(dtype, e.rows, e.features, e.padding).fill("x");
      const int64_t elements = e.rows * e.features;
      std::vector<int64_t> places = {-1};
      for (const int64_t place : {elements - 1, elements / 2, int64_t{0}}) {
        if (elements > 0 && place != places.back()) places.push_back(place);
      }
      for (size_t i = 0; i < places.size(); ++i) {  // each place before the one before it
        if (i > 0) x.set(places[i] / e.features, places[i] % e.features, i % 2 == 0 ? nan : -infinity);
        on_every_target(
            [&](ThreadTeam& team) {
              Tensor found(DType::fp64, 1, 1);
              found.set(0, 0, static_cast<double>(first_non_finite(team, e.rows, e.features, x.view())));
              return std::vector{found};
            },
            [&](const std::vector<Tensor>& out) {
              EXPECT_EQ(out[0].get(0, 0), static_cast<double>(places[i]));
            });
      }
    }
  }
}

TEST(Reduction, LargestNumbersAreFinite) {
  Tensor x(DType::fp32, 1, 33);
  for (int64_t f = 0; f < 33; ++f) x.set(0, f, f % 2 == 0 ? 3.4028234e38 : -3.4028234e38);
  ThreadTeam team(1);
  EXPECT_EQ(first_non_finite(team, 1, 33, x.view()), -1);
}

}  // namespace
}  // namespace athanor::cpu
