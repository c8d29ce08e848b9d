// What a tile of attention knows of its call: sizes, scratch, tokens, visible segments. Compiled once per
// target, and once more with bf16 dot products; included after foreach_target.h.
#if defined(ATHANOR_KERNELS_CPU_ATTENTION_CONTEXT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_ATTENTION_CONTEXT_INL_H
#undef ATHANOR_KERNELS_CPU_ATTENTION_CONTEXT_INL_H
#else
#define ATHANOR_KERNELS_CPU_ATTENTION_CONTEXT_INL_H
#endif

#include "athanor/kernels/cpu/attention_vectors-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// One panel: up to 64 queries of one head.
struct Panel {
  int64_t index;   // within the tile
  int64_t first;   // query within the sample
  int64_t count;   // queries
  int64_t groups;  // of 16 lanes
  QueryTokens tokens;
};

// Sizes and scratch of a tile of one call.
struct TileContext {
  const AttentionJob* job;
  AttentionScratch scratch;
  int64_t size, padded;  // E
  int64_t sample;
  const TokenRange *query_groups, *key_groups, *query_blocks, *key_blocks;
  DropoutStream dropout;
  bool drops;
  // Of the key block at hand.
  uint32_t *keys = nullptr, *values = nullptr, *key_pairs = nullptr;
  Fetcher* fetcher;

  TileContext(const AttentionJob& the_job, AttentionDirection direction, int thread, int64_t the_sample,
              Fetcher& the_fetcher)
      : job(&the_job),
        size(the_job.shape.head_size),
        padded(the_job.grid.padded_size),
        sample(the_sample),
        fetcher(&the_fetcher) {
    Carver carver(the_job.scratch + thread * the_job.scratch_bytes);
    scratch = carve_scratch(carver, the_job.shape, the_job.grid, direction);
    const AttentionGrid& grid = the_job.grid;
    query_groups = the_job.ranges.query_groups + sample * grid.query_groups;
    key_groups = the_job.ranges.key_groups + sample * grid.key_groups;
    query_blocks = the_job.ranges.query_blocks + sample * grid.query_blocks;
    key_blocks = the_job.ranges.key_blocks + sample * grid.key_blocks;
    drops = the_job.options.dropout.probability > 0;
  }

  void set_head(int64_t head) {
    if (!drops) return;
    const AttentionDropout& from = job->options.dropout;
    dropout.key = head_key(dropout_key(from.seed, from.name_hash, from.step), from.first_head + head);
    const auto id = static_cast<uint64_t>(from.sample_ids[sample]);
    dropout.sample_low = static_cast<uint32_t>(id);
    dropout.sample_high = static_cast<uint32_t>(id >> 32);
    dropout.threshold = dropout_threshold(from.probability);
    dropout.scale = static_cast<float>(dropout_scale(from.probability));
  }

  // Makes `keys`, `values` and `key_pairs` those of a block of the key head, packing it unless it is there.
  template <class Arithmetic>
  void take_keys(int64_t key_head, int64_t block, AttentionDirection direction) {
    const int64_t words = attention_block * padded;
    keys = scratch.keys + block * words;
    values = scratch.values + block * words;
    key_pairs = scratch.key_pairs + block * words / 2;
    const int64_t owner = sample * job->shape.key_heads + key_head;
    if (*scratch.packed_owner != owner) {
      for (int64_t i = 0; i < job->grid.key_blocks; ++i) scratch.packed[i] = 0;
      *scratch.packed_owner = owner;
    }
    if (scratch.packed[block] != 0) return;
    Arithmetic::pack_keys(*this, key_head, block, direction);
    scratch.packed[block] = 1;
  }
  bool has_keys(int64_t key_head, int64_t block) const {
    return *scratch.packed_owner == sample * job->shape.key_heads + key_head && scratch.packed[block] != 0;
  }

  int64_t keys_of(int64_t block) const {
    return HWY_MIN(attention_block, job->shape.key_length - block * attention_block);
  }

  KeyTokens key_tokens(int64_t block) const {
    const int64_t first = sample * job->shape.key_length + block * attention_block;
    const AttentionTokens& tokens = job->key_tokens;
    return {tokens.positions + first, tokens.documents + first, drops ? tokens.indices + first : nullptr};
  }

  // The panel of query block `block` as number `index` of the tile, its tokens in lanes.
  Panel make_panel(int64_t index, int64_t block) const {
    Panel panel;
    panel.index = index;
    panel.first = block * attention_block;
    panel.count = HWY_MIN(attention_block, job->shape.query_length - panel.first);
    panel.groups = ceil_divide(panel.count, attention_group);
    const int64_t lanes = index * attention_block;
    const int64_t token = sample * job->shape.query_length + panel.first;
    const AttentionTokens& tokens = job->query_tokens;
    // No two positions are further apart than 2^32.
    const int64_t window = HWY_MIN(job->options.window, int64_t{1} << 33);
    for (int64_t i = 0; i < panel.groups * attention_group; ++i) {
      const int64_t from = token + HWY_MIN(i, panel.count - 1);  // unused lanes repeat the last query
      const int64_t lower = int64_t{tokens.positions[from]} - window + 1;
      constexpr int64_t least = std::numeric_limits<int32_t>::min();
      scratch.query_positions[lanes + i] = tokens.positions[from];
      scratch.query_documents[lanes + i] = tokens.documents[from];
      scratch.query_lower[lanes + i] = static_cast<int32_t>(window > 0 && lower > least ? lower : least);
      scratch.query_indices[lanes + i] = drops ? tokens.indices[from] : 0;
    }
    panel.tokens = {scratch.query_positions + lanes, scratch.query_documents + lanes,
                    scratch.query_lower + lanes, scratch.query_indices + lanes};
    return panel;
  }

  Segments segments_of(const Panel& panel, int64_t key_block) const {
    const int64_t query_block = panel.first / attention_block;
    return find_segments(query_blocks[query_block], query_groups + query_block * attention_groups_per_block,
                         panel.groups, key_blocks[key_block],
                         key_groups + key_block * attention_groups_per_block, keys_of(key_block),
                         job->options.window);
  }
};

// What earlier parts of the keys gave for the queries of a panel, or zeros, as tiles with queries across.
inline void begin_sums_across(const TileContext& context, const Panel& panel, ConstRows before,
                              int64_t head) {
  const AttentionScratch& scratch = context.scratch;
  float* sums = scratch.sums_across + panel.index * context.padded * tile_columns;
  zero_words(sums, context.padded * tile_columns);
  if (!before.present()) return;
  const int64_t token = context.sample * context.job->shape.query_length + panel.first;
  const int64_t lanes = panel.groups * attention_group;
  load_float_rows(before, token, head * context.size, panel.count, context.size, context.padded,
                  reinterpret_cast<float*>(scratch.rows));
  zero_words(scratch.rows + panel.count * context.padded, (lanes - panel.count) * context.padded);
  transpose(scratch.rows, context.padded, lanes, ceil_divide(context.size, int64_t{4}) * 4,
            reinterpret_cast<uint32_t*>(sums), tile_columns);
}

// One key block, and what each panel of the tile sees of it.
struct Step {
  int64_t block;
  int64_t panels;  // that see any of it
  Segments segments[attention_max_panels];
};

// The first block from `from` on that any panel sees any of; none is past the last block.
inline Step next_step(const TileContext& context, const Panel* panels, int64_t count, int64_t from) {
  Step step;
  for (step.block = from; step.block < context.job->grid.key_blocks; ++step.block) {
    step.panels = 0;
    for (int64_t p = 0; p < count; ++p) {
      step.segments[p] = context.segments_of(panels[p], step.block);
      step.panels += step.segments[p].count > 0 ? 1 : 0;
    }
    if (step.panels > 0) break;
  }
  return step;
}

// Steps of products (six rows each) that one block takes of one panel, roughly.
inline int64_t product_steps(const TileContext& context, AttentionDirection direction) {
  const int64_t rows = (direction == AttentionDirection::forward ? 1 : 4) * attention_block + context.size;
  return ceil_divide(rows, int64_t{6});
}

// One head's part of `count` token rows from `token` on.
inline void fetch_rows(Ahead& ahead, const TileContext& context, ConstRows rows, int64_t token, int64_t head,
                       int64_t count) {
  const auto element = static_cast<int64_t>(size_of(rows.dtype));
  ahead.add(rows.at(token, head * context.size).data, rows.stride * element, context.size * element, count);
}

// Keys and values of a block, unless they are packed.
inline void fetch_keys(const TileContext& context, int64_t key_head, int64_t block) {
  const AttentionJob& job = *context.job;
  if (block >= job.grid.key_blocks || context.has_keys(key_head, block)) return;
  const int64_t token = context.sample * job.shape.key_length + block * attention_block;
  fetch_rows(context.fetcher->block, context, job.k, token, key_head, context.keys_of(block));
  fetch_rows(context.fetcher->block, context, job.v, token, key_head, context.keys_of(block));
}

// Spreads what is fetched for later panels over all products of these panels.
inline void pace_panels(const TileContext& context, const Panel* panels, int64_t count,
                        AttentionDirection direction) {
  int64_t blocks = 0;
  for (int64_t p = 0; p < count; ++p) {
    const TokenRange& queries = context.query_blocks[panels[p].first / attention_block];
    for (int64_t block = 0; block < context.job->grid.key_blocks; ++block)
      blocks +=
          visibility(queries, context.key_blocks[block], context.job->options.window) != Visibility::none ? 1
                                                                                                          : 0;
  }
  context.fetcher->panels.spread_over(HWY_MAX(blocks, int64_t{1}) * product_steps(context, direction));
}

HWY_INLINE int64_t first_vector(const Segment& segment) {
  return segment.first_group * vectors_per_group;
}
HWY_INLINE int64_t vector_count(const Segment& segment) {
  return segment.groups * vectors_per_group;
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
