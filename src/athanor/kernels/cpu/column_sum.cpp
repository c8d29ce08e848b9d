#include "athanor/kernels/cpu/column_sum.h"

#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/column_sum.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// sums[0 .. count) = sums over tokens [begin, end) of columns [first, first + count), count <=
// chunk_elements.
void column_sum_block(const ConstRows& x, int64_t begin, int64_t end, int64_t first, int64_t count,
                      float* HWY_RESTRICT sums) {
  HWY_ALIGN float buffer[chunk_elements];
  std::fill_n(sums, count, 0.0F);
  for (int64_t token = begin; token < end; ++token) {
    const ConstSpan row = x.at(token, first);
    const float* values = widen(row.data, row.dtype, count, buffer);
    for_vectors(count, [&](int64_t j, auto extent) HWY_ATTR {
      store(hn::Add(load(sums + j, extent), load(values + j, extent)), sums + j, extent);
    });
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(column_sum_block);

void combine_blocks(ThreadTeam& team, const float* partials, int64_t blocks, int64_t stride, int64_t features,
                    float* out, bool accumulate) {
  constexpr int64_t tile = 512;
  team.parallel_for(ceil_divide(features, tile), [&](int64_t index, int) {
    double sums[tile] = {};
    const int64_t first = index * tile, count = std::min(tile, features - first);
    if (accumulate) std::copy_n(out + first, count, sums);
    for (int64_t block = 0; block < blocks; ++block) {
      const float* row = partials + block * stride + first;
      for (int64_t i = 0; i < count; ++i) sums[i] += static_cast<double>(row[i]);
    }
    for (int64_t i = 0; i < count; ++i) out[first + i] = static_cast<float>(sums[i]);
  });
}

int64_t column_sum_workspace_bytes(int64_t tokens, int64_t features) {
  return TokenBlocks(tokens).count * align_floats(features) * static_cast<int64_t>(sizeof(float));
}

void column_sum(ThreadTeam& team, int64_t tokens, int64_t features, ConstRows x, float* out, bool accumulate,
                std::byte* workspace) {
  if (features <= 0) return;
  const TokenBlocks blocks(tokens);
  const int64_t chunks = ceil_divide(features, chunk_elements), width = align_floats(features);
  auto* partials = reinterpret_cast<float*>(workspace);
  team.parallel_for(blocks.count * chunks, [&](int64_t tile, int) {
    const int64_t block = tile / chunks, first = tile % chunks * chunk_elements;
    HWY_DYNAMIC_DISPATCH(column_sum_block)
    (x, blocks.begin(block), blocks.end(block), first, std::min(chunk_elements, features - first),
     partials + block * width + first);
  });
  combine_blocks(team, partials, blocks.count, width, features, out, accumulate);
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
