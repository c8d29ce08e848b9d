#include "athanor/kernels/cpu/highway_targets.h"
#include "athanor/kernels/cpu/optimizer.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/optimizer_sgd.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/optimizer-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

void sgd_tile(const BucketUpdate& update, double momentum, bool nesterov, const BucketTiles::Member& member,
              const BucketTiles::Tile& tile, float* momentum_buffer) {
  const Float clip = splat(static_cast<float>(update.gradient_factor())),
              keep = splat(static_cast<float>(momentum));
  const Float decay = splat(static_cast<float>(member.weight_decay));
  const Float step = splat(static_cast<float>(update.learning_rate * member.learning_rate_factor));
  for_chunks(tile.count, [&](int64_t i, int64_t n) HWY_ATTR {
    const int64_t first = tile.offset + i;
    const float* gradient = update.gradient + first;
    float *weights = update.master + first, *buffer = momentum_buffer + first;
    for_vectors(n, [&](int64_t j, auto extent) HWY_ATTR {
      const Float w = load(weights + j, extent);
      const Float g = hn::MulAdd(w, decay, hn::Mul(load(gradient + j, extent), clip));
      const Float b = hn::MulAdd(load(buffer + j, extent), keep, g);
      store(b, buffer + j, extent);
      const Float direction = nesterov ? hn::MulAdd(b, keep, g) : b;
      store(hn::NegMulAdd(direction, step, w), weights + j, extent);
    });
    publish(update, first, n);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(sgd_tile);

void sgd(ThreadTeam& team, const BucketTiles& tiles, const BucketUpdate& update, double momentum,
         bool nesterov, float* momentum_buffer) {
  if (*update.skip != 0) return;
  team.parallel_for(tiles.tile_count(), [&](int64_t index, int) {
    const BucketTiles::Tile& tile = tiles.tiles[static_cast<size_t>(index)];
    HWY_DYNAMIC_DISPATCH(sgd_tile)
    (update, momentum, nesterov, tiles.members[static_cast<size_t>(tile.member)], tile, momentum_buffer);
  });
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
