#include "athanor/kernels/cpu/attention_plan.h"

#include <algorithm>

namespace athanor::cpu {
namespace {

// Enough tiles for a large machine, and for their sizes to even out at the end of a call.
constexpr int64_t wanted_tiles = 128;
// Backward cuts the work of a key head only when there are fewer key heads than this, because each chunk
// needs sums of its own.
constexpr int64_t wanted_owners = 32;
constexpr int64_t wanted_chunk_tiles = 32;

}  // namespace

AttentionGrid::AttentionGrid(const AttentionShape& shape, AttentionDirection direction)
    : padded_size(ceil_divide(shape.head_size, int64_t{16}) * 16),
      query_groups(ceil_divide(shape.query_length, attention_group)),
      key_groups(ceil_divide(shape.key_length, attention_group)),
      query_blocks(ceil_divide(shape.query_length, attention_block)),
      key_blocks(ceil_divide(shape.key_length, attention_block)),
      panels(attention_max_panels),
      chunks(1) {
  const int64_t heads = shape.batch * shape.query_heads;
  while (panels > 1 &&
         (panels / 2 >= query_blocks || heads * ceil_divide(query_blocks, panels) < wanted_tiles))
    panels /= 2;
  units_per_head = ceil_divide(query_blocks, panels);
  if (direction == AttentionDirection::forward) {
    tiles = heads * units_per_head;
    return;
  }
  const int64_t owners = shape.batch * shape.key_heads;
  if (owners > 0 && owners < wanted_owners) {
    const int64_t units = units_per_head * (shape.query_heads / shape.key_heads);
    chunks = std::clamp(ceil_divide(wanted_chunk_tiles, owners), int64_t{1}, std::max(units, int64_t{1}));
  }
  tiles = owners * chunks;
}

AttentionScratch carve_scratch(Carver& carver, const AttentionShape& shape, const AttentionGrid& grid,
                               AttentionDirection direction) {
  constexpr int64_t block = attention_block;
  const int64_t padded = grid.padded_size;
  const int64_t lanes = grid.panels * block;
  const bool backward = direction == AttentionDirection::backward;
  AttentionScratch s{};
  s.scores = carver.take<float>(block * block);
  s.value_products = carver.take<float>(backward ? block * block : 0);
  s.weights = carver.take<uint32_t>(block * block);
  s.score_gradients = carver.take<uint32_t>(backward ? block * block : 0);
  s.gradient_pairs = carver.take<uint32_t>(backward ? block * block : 0);
  s.packed_owner = carver.take<int64_t>(1);
  s.packed = carver.take<uint8_t>(grid.key_blocks);
  s.summed = carver.take<uint8_t>(grid.key_blocks);
  s.written = carver.take<uint8_t>(grid.key_blocks);
  s.keys = carver.take<uint32_t>(grid.key_blocks * block * padded);
  s.values = carver.take<uint32_t>(grid.key_blocks * block * padded);
  s.key_pairs = carver.take<uint32_t>(backward ? grid.key_blocks * block / 2 * padded : 0);
  s.queries_across = carver.take<uint32_t>(lanes * padded);
  s.sums_across = carver.take<float>(lanes * padded);
  s.maximum = carver.take<float>(lanes);
  s.sum = carver.take<float>(lanes);
  s.shift = carver.take<float>(block);
  s.rescale = carver.take<float>(block);
  s.query_positions = carver.take<int32_t>(lanes);
  s.query_documents = carver.take<int32_t>(lanes);
  s.query_lower = carver.take<int32_t>(lanes);
  s.query_indices = carver.take<int32_t>(lanes);
  s.rows = carver.take<uint32_t>(block * padded);
  s.keep = carver.take<float>(block * block);
  if (backward) {
    s.gradients_across = carver.take<uint32_t>(lanes * padded);
    s.query_rows = carver.take<uint32_t>(lanes * padded);
    s.gradient_rows = carver.take<uint32_t>(lanes * padded);
    if (grid.chunks == 1) {
      s.key_sums = carver.take<float>(shape.key_length * padded);
      s.value_sums = carver.take<float>(shape.key_length * padded);
    }
  }
  return s;
}

AttentionRanges carve_ranges(Carver& carver, const AttentionShape& shape, const AttentionGrid& grid) {
  AttentionRanges ranges{};
  ranges.query_groups = carver.take<TokenRange>(shape.batch * grid.query_groups);
  ranges.key_groups = carver.take<TokenRange>(shape.batch * grid.key_groups);
  ranges.query_blocks = carver.take<TokenRange>(shape.batch * grid.query_blocks);
  ranges.key_blocks = carver.take<TokenRange>(shape.batch * grid.key_blocks);
  ranges.chunk_starts = carver.take<int64_t>(grid.chunks > 1 ? shape.batch * (grid.chunks + 1) : 0);
  return ranges;
}

}  // namespace athanor::cpu
