#include <algorithm>
#include <cmath>

#include "athanor/kernels/cpu/highway_targets.h"
#include "athanor/kernels/cpu/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/optimizer_lamb.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/optimizer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// squares[0], squares[1] = sums over the tile of w^2 and of u^2.
void lamb_norms_tile(const BucketUpdate& update, const AdamOptions& options,
                     const BucketTiles::Member& member, const BucketTiles::Tile& tile,
                     const float* first_moment, const float* second_moment, double* squares) {
  const Adam adam(options, update.gradient_factor());
  const Float decay = splat(static_cast<float>(member.weight_decay));
  HWY_ALIGN float u[chunk_elements];
  squares[0] = squares[1] = 0;
  for_chunks(tile.count, [&](int64_t i, int64_t n) HWY_ATTR {
    const int64_t first = tile.offset + i;
    const float *gradient = update.gradient + first, *weights = update.master + first;
    const float *m = first_moment + first, *v = second_moment + first;
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float g = adam.gradient(load(gradient + j, extent));
      const Float direction =
          adam.direction(adam.first(load(m + j, extent), g), adam.second(load(v + j, extent), g));
      store(hn::MulAdd(load(weights + j, extent), decay, direction), u + j, extent);
    });
    squares[0] += sum_of_squares(weights, n);
    squares[1] += sum_of_squares(u, n);
  });
}

void lamb_tile(const BucketUpdate& update, const AdamOptions& options, const BucketTiles::Member& member,
               const BucketTiles::Tile& tile, double ratio, float* first_moment, float* second_moment) {
  const Adam adam(options, update.gradient_factor());
  const Float decay = splat(static_cast<float>(member.weight_decay));
  const Float step = splat(static_cast<float>(update.learning_rate * member.learning_rate_factor * ratio));
  for_chunks(tile.count, [&](int64_t i, int64_t n) HWY_ATTR {
    const int64_t first = tile.offset + i;
    const float* gradient = update.gradient + first;
    float *weights = update.master + first, *m = first_moment + first, *v = second_moment + first;
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float g = adam.gradient(load(gradient + j, extent)), w = load(weights + j, extent);
      const Float new_m = adam.first(load(m + j, extent), g), new_v = adam.second(load(v + j, extent), g);
      store(new_m, m + j, extent);
      store(new_v, v + j, extent);
      const Float u = hn::MulAdd(w, decay, adam.direction(new_m, new_v));
      store(hn::NegMulAdd(u, step, w), weights + j, extent);
    });
    publish(update, first, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(lamb_norms_tile);
HWY_EXPORT(lamb_tile);

namespace {

double trust_ratio(const BucketTiles::Member& member, double weight_square, double update_square, double low,
                   double high) {
  if (!member.has_trust_ratio || !(weight_square > 0) || !(update_square > 0)) return 1;
  const double ratio = std::max(std::sqrt(weight_square) / std::sqrt(update_square), low);
  return high > 0 ? std::min(ratio, high) : ratio;
}

}  // namespace

int64_t lamb_norms_workspace_bytes(int64_t elements, int64_t members) {
  return 2 * BucketTiles::most_tiles(elements, members) * static_cast<int64_t>(sizeof(double));
}

void lamb_norms(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update,
                const AdamOptions& options, const float* first_moment, const float* second_moment,
                double* norms, std::byte* workspace) {
  if (*update.skip != 0) {
    std::fill_n(norms, 2 * tiles.member_count(), 0.0);
    return;
  }
  auto* squares = reinterpret_cast<double*>(workspace);
  team.parallel_for(tiles.tile_count(), [&](int64_t index, int) {
    const BucketTiles::Tile& tile = tiles.tiles[static_cast<size_t>(index)];
    HWY_DYNAMIC_DISPATCH(lamb_norms_tile)
    (update, options, tiles.members[static_cast<size_t>(tile.member)], tile, first_moment, second_moment,
     squares + 2 * index);
  });
  for (int64_t m = 0; m < tiles.member_count(); ++m) {
    const BucketTiles::Member& member = tiles.members[static_cast<size_t>(m)];
    double weight = 0, change = 0;
    for (int64_t tile = member.first_tile; tile < member.first_tile + member.tile_count; ++tile) {
      weight += squares[2 * tile];
      change += squares[2 * tile + 1];
    }
    norms[2 * m] = weight;
    norms[2 * m + 1] = change;
  }
}

void lamb(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update, const AdamOptions& options,
          double trust_low, double trust_high, const double* norms, float* first_moment,
          float* second_moment) {
  if (*update.skip != 0) return;
  team.parallel_for(tiles.tile_count(), [&](int64_t index, int) {
    const BucketTiles::Tile& tile = tiles.tiles[static_cast<size_t>(index)];
    const BucketTiles::Member& member = tiles.members[static_cast<size_t>(tile.member)];
    const double ratio =
        trust_ratio(member, norms[2 * tile.member], norms[2 * tile.member + 1], trust_low, trust_high);
    HWY_DYNAMIC_DISPATCH(lamb_tile)(update, options, member, tile, ratio, first_moment, second_moment);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
