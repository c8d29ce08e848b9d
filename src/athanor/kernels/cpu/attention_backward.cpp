// The backward tiles in fp32 arithmetic for every instruction set.
#include "athanor/kernels/cpu/attention_simd.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/attention_backward.cpp"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/attention_backward-inl.h"
#include "athanor/kernels/cpu/attention_float-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

void attention_backward_tile(const AttentionJob& job, int64_t tile, int thread) {
  backward_tile_of<FloatArithmetic>(job, tile, thread);
}

// dk, dv of one key block of one (sample, key head): what earlier parts gave, then its chunks in order.
void attention_sum_tile(const AttentionJob& job, int64_t tile, int) {
  const FloatTag d;
  const AttentionGrid& grid = job.grid;
  const int64_t padded = grid.padded_size;
  const int64_t block = tile % grid.key_blocks;
  const int64_t owner = tile / grid.key_blocks;  // (sample, key head)
  const int64_t sample = owner / job.shape.key_heads;
  const int64_t column = owner % job.shape.key_heads * job.shape.head_size;
  const int64_t sums = job.shape.key_length * padded;
  const int64_t first = block * attention_block;
  const int64_t end = HWY_MIN(job.shape.key_length, first + attention_block);
  HWY_ALIGN float row[256];
  for (int64_t key = first; key < end; ++key) {
    for (int64_t which = 0; which < 2; ++which) {
      const ConstRows& before = which == 0 ? job.dk_before : job.dv_before;
      if (before.present()) {
        load_float_rows(before, sample * job.shape.key_length + key, column, 1, job.shape.head_size, padded,
                        row);
      } else {
        zero_words(row, padded);
      }
      for (int64_t chunk = 0; chunk < grid.chunks; ++chunk) {
        const int64_t from_tile = owner * grid.chunks + chunk;
        if (job.partial_summed[from_tile * grid.key_blocks + block] == 0) continue;
        const float* from = job.partial_sums + (from_tile * 2 + which) * sums + key * padded;
        for (int64_t i = 0; i < padded; i += float_lanes)
          hn::StoreU(hn::Add(hn::LoadU(d, row + i), hn::LoadU(d, from + i)), d, row + i);
      }
      const Span to = (which == 0 ? job.dk : job.dv).at(sample * job.shape.key_length + key, column);
      narrow(row, to.data, to.dtype, job.shape.head_size);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(attention_backward_tile);
HWY_EXPORT(attention_sum_tile);
AttentionTile simd_backward_tile() {
  return &HWY_DYNAMIC_DISPATCH(attention_backward_tile);
}
AttentionTile simd_sum_tile() {
  return &HWY_DYNAMIC_DISPATCH(attention_sum_tile);
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
