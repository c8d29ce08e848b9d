#include "athanor/kernels/cpu/gradient_norm.h"

#include <cmath>

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/gradient_norm.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

double squares_of(ConstSpan x, int64_t first, int64_t count) {
  const auto size = static_cast<int64_t>(size_of(x.dtype));
  Source source({x.data + first * size, x.dtype});
  double total = 0;
  for_chunks(count, [&](int64_t i, int64_t n) HWY_ATTR { total += sum_of_squares(source.get(i, n), n); });
  return total;
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(squares_of);

int64_t squared_norms_workspace_bytes(int64_t elements, int64_t members) {
  return BucketTiles::most_tiles(elements, members) * static_cast<int64_t>(sizeof(double));
}

void squared_norms(ThreadTeam& team, const BucketTiles& tiles, ConstSpan gradient, double* norms,
                   std::byte* workspace) {
  auto* partial = reinterpret_cast<double*>(workspace);
  team.parallel_for(tiles.tile_count(), [&](int64_t index, int) {
    const BucketTiles::Tile& tile = tiles.tiles[static_cast<size_t>(index)];
    partial[index] = HWY_DYNAMIC_DISPATCH(squares_of)(gradient, tile.offset, tile.count);
  });
  for (const BucketTiles::Member& member : tiles.members) {
    double total = 0;
    for (int64_t tile = 0; tile < member.tile_count; ++tile) total += partial[member.first_tile + tile];
    *norms++ = total;
  }
}

Clip clip_of(std::span<const double> squares, double valid_tokens, double loss, const ClipLimits& limits) {
  double total = 0;
  for (const double square : squares) total += square;
  const double norm = std::sqrt(total) / limits.loss_scale;
  Clip clip{.gradient_norm = norm};
  clip.skip = !std::isfinite(norm) || !std::isfinite(loss) || !(valid_tokens > 0) ||
              norm > limits.norm_limit || loss / valid_tokens > limits.mean_loss_limit;
  if (clip.skip) {
    clip.factor = 0;
  } else if (limits.maximum_norm > 0 && norm > limits.maximum_norm) {
    clip.factor = limits.maximum_norm / norm;
  }
  return clip;
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
