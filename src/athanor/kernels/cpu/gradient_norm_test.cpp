#include "athanor/kernels/cpu/gradient_norm.h"

#include <gtest/gtest.h>

#include <limits>

#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::on_every_target;
using testing::scratch_of;
using testing::storage_types;
using testing::Tensor;

BucketTable table_of(const std::vector<int64_t>& lengths, int64_t first_offset = 0) {
  BucketTable table;
  int64_t offset = first_offset;
  for (const int64_t length : lengths) {
    table.members.push_back({.name = "m" + std::to_string(offset), .shape = {length}, .offset = offset});
    offset += length;
  }
  return table;
}

Tensor norms_of(ThreadTeam& team, const BucketTable& table, const Tensor& gradient) {
  const BucketTiles tiles(table);
  Tensor norms(DType::fp64, 1, tiles.member_count());
  EXPECT_LE(tiles.tile_count(), BucketTiles::most_tiles(gradient.features, tiles.member_count()));
  squared_norms(team, tiles, gradient.view().at(0), norms.as<double>(),
                scratch_of(squared_norms_workspace_bytes(gradient.features, tiles.member_count())).data());
  return norms;
}

TEST(GradientNorm, SquaresOfEveryMember) {
  const BucketTable table = table_of({1, 7, 33, 50257, 16384, 16385, 5});
  for (const DType dtype : storage_types) {
    const Tensor gradient = Tensor(dtype, 1, table.length()).fill("gradient");
    on_every_target([&](ThreadTeam& team) { return std::vector{norms_of(team, table, gradient)}; },
                    [&](const std::vector<Tensor>& out) {
                      for (size_t m = 0; m < table.members.size(); ++m) {
                        double want = 0;
                        for (int64_t i = 0; i < table.members[m].length(); ++i)
                          want += std::pow(gradient.get(0, table.members[m].offset + i), 2);
                        EXPECT_NEAR(out[0].get(0, static_cast<int64_t>(m)), want, 1e-12 * want) << m;
                      }
                    });
  }
}

// The norm of a parameter has the same bits whatever bucket it lies in and whoever its neighbours are, and
// the global norm adds parameters in the order given: so layouts that divide the model otherwise clip alike.
TEST(GradientNorm, Layout_P04_BucketsDoNotChangeTheBits) {
  const std::vector<int64_t> lengths = {33333, 129, 50257};
  const BucketTable together = table_of(lengths);
  const Tensor gradient = Tensor(DType::fp32, 1, together.length()).fill("gradient", -1e-3, 1);
  on_every_target(
      [&](ThreadTeam& team) {
        std::vector<Tensor> all = {norms_of(team, together, gradient)};
        Tensor apart(DType::fp64, 1, 3);
        for (size_t m = 0; m < lengths.size(); ++m) {  // each in a bucket of its own, behind a gap
          const int64_t gap = 1 + 5 * static_cast<int64_t>(m);
          Tensor own(DType::fp32, 1, gap + lengths[m]);
          own.fill("gap");
          std::copy_n(gradient.as<float>() + together.members[m].offset, lengths[m], own.as<float>() + gap);
          apart.as<double>()[m] = norms_of(team, table_of({lengths[m]}, gap), own).get(0, 0);
        }
        all.push_back(apart);
        return all;
      },
      [&](const std::vector<Tensor>& out) {
        EXPECT_TRUE(out[0].bytes == out[1].bytes);
        const std::span squares(out[0].as<double>(), 3);
        EXPECT_EQ(clip_of(squares, 1, 0, {}).gradient_norm, std::sqrt(squares[0] + squares[1] + squares[2]));
      });
}

TEST(GradientNorm, OneBadElementMakesItsMemberAndTheStepBad) {
  const BucketTable table = table_of({40000, 7});
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double bad : {infinity, -infinity, std::numeric_limits<double>::quiet_NaN(), 3e38}) {
    Tensor gradient = Tensor(DType::fp32, 1, table.length()).fill("gradient");
    gradient.set(0, 39999, bad);
    on_every_target([&](ThreadTeam& team) { return std::vector{norms_of(team, table, gradient)}; },
                    [&](const std::vector<Tensor>& out) {
                      EXPECT_EQ(std::isfinite(out[0].get(0, 0)), bad == 3e38);
                      EXPECT_TRUE(std::isfinite(out[0].get(0, 1)));
                      const Clip clip = clip_of({out[0].as<double>(), 2}, 1, 0, {.maximum_norm = 1});
                      EXPECT_EQ(clip.skip, bad != 3e38);
                      EXPECT_EQ(clip.factor == 0, bad != 3e38);
                    });
  }
}

TEST(GradientNorm, Clip) {
  const double squares[] = {9, 16};
  EXPECT_EQ(clip_of(squares, 10, 0, {}).factor, 1);
  EXPECT_EQ(clip_of(squares, 10, 0, {}).gradient_norm, 5);
  EXPECT_EQ(clip_of(squares, 10, 0, {.maximum_norm = 6}).factor, 1);
  EXPECT_EQ(clip_of(squares, 10, 0, {.maximum_norm = 1}).factor, 0.2);
  EXPECT_EQ(clip_of(squares, 10, 0, {.maximum_norm = 1, .loss_scale = 10}).gradient_norm, 0.5);
  EXPECT_EQ(clip_of(squares, 10, 0, {.maximum_norm = 1, .loss_scale = 10}).factor, 1);
  EXPECT_TRUE(clip_of(squares, 0, 0, {}).skip) << "no valid token";
  EXPECT_FALSE(clip_of({}, 1, 0, {}).skip);
  EXPECT_TRUE(clip_of(squares, 10, 0, {.norm_limit = 4.9}).skip);
  EXPECT_FALSE(clip_of(squares, 10, 0, {.norm_limit = 5}).skip);
  EXPECT_TRUE(clip_of(squares, 10, 31, {.mean_loss_limit = 3}).skip);
  EXPECT_FALSE(clip_of(squares, 10, 30, {.mean_loss_limit = 3}).skip);
  EXPECT_TRUE(clip_of(squares, 10, std::numeric_limits<double>::quiet_NaN(), {}).skip);
  EXPECT_TRUE(clip_of(squares, 10, std::numeric_limits<double>::infinity(), {}).skip);
}

}  // namespace
}  // namespace athanor::cpu
