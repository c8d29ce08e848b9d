#include "athanor/kernels/cpu/highway_targets.h"
#include "athanor/kernels/cpu/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/optimizer_adamw.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/optimizer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

void adamw_tile(const BucketUpdate& update, const AdamOptions& options, const BucketTiles::Member& member,
                const BucketTiles::Tile& tile, float* first_moment, float* second_moment) {
  const Adam adam(options, update.gradient_factor());
  const double rate = update.learning_rate * member.learning_rate_factor;
  const Float decay = splat(static_cast<float>(rate * member.weight_decay));
  const Float step = splat(static_cast<float>(rate));
  for_chunks(tile.count, [&](int64_t i, int64_t n) HWY_ATTR {
    const int64_t first = tile.offset + i;
    const float* gradient = update.gradient + first;
    float *weights = update.master + first, *m = first_moment + first, *v = second_moment + first;
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float g = adam.gradient(load(gradient + j, extent));
      const Float new_m = adam.first(load(m + j, extent), g), new_v = adam.second(load(v + j, extent), g);
      store(new_m, m + j, extent);
      store(new_v, v + j, extent);
      const Float w = load(weights + j, extent);
      const Float decayed = hn::NegMulAdd(w, decay, w);  // 1 - decay would lose digits of a small decay
      store(hn::NegMulAdd(adam.direction(new_m, new_v), step, decayed), weights + j, extent);
    });
    publish(update, first, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(adamw_tile);

void adamw(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update, const AdamOptions& options,
           float* first_moment, float* second_moment) {
  if (*update.skip != 0) return;
  team.parallel_for(tiles.tile_count(), [&](int64_t index, int) {
    const BucketTiles::Tile& tile = tiles.tiles[static_cast<size_t>(index)];
    HWY_DYNAMIC_DISPATCH(adamw_tile)
    (update, options, tiles.members[static_cast<size_t>(tile.member)], tile, first_moment, second_moment);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
