// The tiles of attention, forward and backward, over an `Arithmetic` that says how tiles are packed,
// multiplied and stored between products. Compiled once per target, and once more with bf16 dot products.
//
// All tiles of scores stand with keys as rows and queries in the vector lanes, so that the products read
// keys and values where they lie and softmax needs no sums across lanes:
//   forward:   S^T = K Q^T,  O^T += V^T P^T
//   backward:  S^T = K Q^T,  D^T = V G^T,  dV += P^T G,  dK += Z^T Q,  dQ^T += K^T Z^T
// with G = dout and Z = P (D - sum(out * dout)) scale. One pass over the blocks computes all three gradients:
// dQ of a panel is finished when its keys have been walked; dK and dV are summed in fp32 scratch.
#if defined(ATHANOR_KERNELS_CPU_ATTENTION_TILES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_ATTENTION_TILES_INL_H
#undef ATHANOR_KERNELS_CPU_ATTENTION_TILES_INL_H
#else
#define ATHANOR_KERNELS_CPU_ATTENTION_TILES_INL_H
#endif

#include <atomic>
#include <cmath>

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

  TileContext(const AttentionJob& the_job, AttentionDirection direction, int thread, int64_t the_sample)
      : job(&the_job), size(the_job.shape.head_size), padded(the_job.grid.padded_size), sample(the_sample) {
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
    const int64_t window = job->options.window;
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

HWY_INLINE int64_t first_vector(const Segment& segment) {
  return segment.first_group * vectors_per_group;
}
HWY_INLINE int64_t vector_count(const Segment& segment) {
  return segment.groups * vectors_per_group;
}

// ---- Forward ----------------------------------------------------------------------------------------------

// Exponentials of the segment's scores into weights; adds them to `sum`.
template <class Arithmetic>
HWY_NOINLINE void find_weights(const TileContext& context, const Segment& segment, float* sum) {
  const FloatTag d;
  const AttentionScratch& scratch = context.scratch;
  const Float scale = splat(static_cast<float>(context.job->options.scale));
  for (int64_t v = first_vector(segment); v < first_vector(segment) + vector_count(segment); ++v) {
    const int64_t column = v * float_lanes;
    const Float shift = hn::LoadU(d, scratch.shift + column);
    Float even = zero(), odd = zero();
    int64_t row = segment.first_row;
    const int64_t end = row + segment.rows;
    for (; row < end; row += 2) {
      const float* score = scratch.scores + row * tile_columns + column;
      const float* keep = scratch.keep + row * tile_columns + column;
      Float weight0 = weight_of(hn::MulSub(hn::LoadU(d, score), scale, shift));
      even = hn::Add(even, weight0);
      if (row + 1 == end) {
        if (context.drops) weight0 = hn::Mul(weight0, hn::LoadU(d, keep));
        Arithmetic::store_weights(weight0, zero(), row, column, scratch);
        break;
      }
      Float weight1 = weight_of(hn::MulSub(hn::LoadU(d, score + tile_columns), scale, shift));
      odd = hn::Add(odd, weight1);
      if (context.drops) {
        weight0 = hn::Mul(weight0, hn::LoadU(d, keep));
        weight1 = hn::Mul(weight1, hn::LoadU(d, keep + tile_columns));
      }
      Arithmetic::store_weights(weight0, weight1, row, column, scratch);
    }
    hn::StoreU(hn::Add(hn::LoadU(d, sum + column), hn::Add(even, odd)), d, sum + column);
  }
}

// What one block adds to one panel.
template <class Arithmetic>
void forward_block(const TileContext& context, const Panel& panel, const Segments& segments,
                   int64_t key_block) {
  const FloatTag d;
  const AttentionScratch& scratch = context.scratch;
  const int64_t lanes = panel.index * attention_block;
  float* sum = scratch.sum + lanes;
  float* out = scratch.sums_across + panel.index * context.padded * tile_columns;
  const KeyTokens keys = context.key_tokens(key_block);
  for (const Segment& segment : segments) {
    Arithmetic::multiply_scores(context, panel, segment);
    if (segment.masked) mask_scores(segment, panel.tokens, keys, scratch.scores);
    if (context.drops) find_kept(segment, panel.tokens, keys, context.dropout, scratch.keep);
  }
  update_maximum(segments, panel.groups, static_cast<float>(context.job->options.scale), scratch.scores,
                 scratch.maximum + lanes, scratch.shift, scratch.rescale);
  const int64_t columns = panel.groups * attention_group;
  for (int64_t i = 0; i < columns; i += float_lanes)
    hn::StoreU(hn::Mul(hn::LoadU(d, sum + i), hn::LoadU(d, scratch.rescale + i)), d, sum + i);
  const bool whole = segments.count == 1 && segments.items[0].groups == panel.groups;
  if (!whole) {
    for (int64_t e = 0; e < context.size; ++e) {
      float* row = out + e * tile_columns;
      for (int64_t i = 0; i < columns; i += float_lanes)
        hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, scratch.rescale + i)), d, row + i);
    }
  }
  for (const Segment& segment : segments) {
    find_weights<Arithmetic>(context, segment, sum);
    Arithmetic::multiply_out(context, segment, whole, out);
  }
}

// Divides by the sums, writes out and logsumexp.
void finish_panel(const TileContext& context, const Panel& panel, int64_t head) {
  const FloatTag d;
  const AttentionJob& job = *context.job;
  const AttentionScratch& scratch = context.scratch;
  const int64_t lanes = panel.index * attention_block;
  const int64_t columns = panel.groups * attention_group;
  float* out = scratch.sums_across + panel.index * context.padded * tile_columns;
  for (int64_t i = 0; i < columns; i += float_lanes) {
    const Float sum = hn::LoadU(d, scratch.sum + lanes + i);
    const auto empty = hn::Eq(sum, zero());
    hn::StoreU(hn::IfThenZeroElse(empty, hn::Div(splat(1), sum)), d, scratch.rescale + i);
  }
  for (int64_t e = 0; e < context.size; ++e) {
    float* row = out + e * tile_columns;
    for (int64_t i = 0; i < columns; i += float_lanes)
      hn::StoreU(hn::Mul(hn::LoadU(d, row + i), hn::LoadU(d, scratch.rescale + i)), d, row + i);
  }
  transpose(reinterpret_cast<const uint32_t*>(out), tile_columns, ceil_divide(context.size, int64_t{4}) * 4,
            columns, scratch.rows, context.padded);
  const int64_t token = context.sample * job.shape.query_length + panel.first;
  for (int64_t i = 0; i < panel.count; ++i) {
    const Span to = job.out.at(token + i, head * context.size);
    narrow(reinterpret_cast<const float*>(scratch.rows) + i * context.padded, to.data, to.dtype,
           context.size);
    const float sum = scratch.sum[lanes + i];
    const float value = sum == 0 ? -infinity : scratch.maximum[lanes + i] + std::log(sum);
    job.logsumexp[(token + i) * job.shape.query_heads + head] = value;
  }
}

template <class Arithmetic>
void forward_tile_of(const AttentionJob& job, int64_t tile, int thread) {
  const AttentionShape& shape = job.shape;
  const AttentionGrid& grid = job.grid;
  const int64_t sample = tile / (shape.query_heads * grid.units_per_head);
  const int64_t head = tile / grid.units_per_head % shape.query_heads;
  const int64_t key_head = head / (shape.query_heads / shape.key_heads);
  const int64_t unit =
      grid.units_per_head - 1 - tile % grid.units_per_head;  // under a causal mask the heaviest first
  TileContext context(job, AttentionDirection::forward, thread, sample);
  context.set_head(head);
  const AttentionScratch& scratch = context.scratch;

  Panel panels[attention_max_panels];
  const int64_t count = HWY_MIN(grid.panels, grid.query_blocks - unit * grid.panels);
  for (int64_t p = 0; p < count; ++p) {
    panels[p] = context.make_panel(p, unit * grid.panels + p);
    Arithmetic::pack_queries(context, panels[p], head);
    const int64_t lanes = p * attention_block;
    for (int64_t i = 0; i < attention_block; ++i) scratch.maximum[lanes + i] = -infinity;
    zero_words(scratch.sum + lanes, attention_block);
    zero_words(scratch.sums_across + p * context.padded * tile_columns, context.padded * tile_columns);
  }
  int64_t computed = 0;
  for (int64_t block = 0; block < grid.key_blocks; ++block) {
    bool packed = false;
    for (int64_t p = 0; p < count; ++p) {
      const Segments segments = context.segments_of(panels[p], block);
      if (segments.count == 0) continue;
      if (!packed) Arithmetic::pack_keys(context, key_head, block, AttentionDirection::forward);
      packed = true;
      ++computed;
      forward_block<Arithmetic>(context, panels[p], segments, block);
    }
  }
  for (int64_t p = 0; p < count; ++p) finish_panel(context, panels[p], head);
  if (job.options.computed_blocks != nullptr)
    job.options.computed_blocks->fetch_add(computed, std::memory_order_relaxed);
}

// ---- Backward ---------------------------------------------------------------------------------------------

// Weights and score gradients of the segment from its scores and value products.
template <class Arithmetic>
HWY_NOINLINE void find_gradients(const TileContext& context, const Panel& panel, const Segment& segment) {
  const FloatTag d;
  const AttentionScratch& scratch = context.scratch;
  const int64_t lanes = panel.index * attention_block;
  const Float scale = splat(static_cast<float>(context.job->options.scale));
  for (int64_t v = first_vector(segment); v < first_vector(segment) + vector_count(segment); ++v) {
    const int64_t column = v * float_lanes;
    const Float shift = hn::LoadU(d, scratch.maximum + lanes + column);
    const Float total = hn::LoadU(d, scratch.sum + lanes + column);
    const int64_t end = segment.first_row + segment.rows;
    for (int64_t row = segment.first_row; row < end; row += 2) {
      Float weights[2], gradients[2];
      ATHANOR_UNROLL
      for (int64_t i = 0; i < 2; ++i) {
        // The second row of an odd end repeats the first, and counts as nothing.
        const int64_t at = (row + i < end ? row + i : row) * tile_columns + column;
        const Float weight = weight_of(hn::MulSub(hn::LoadU(d, scratch.scores + at), scale, shift));
        Float product = hn::LoadU(d, scratch.value_products + at);
        weights[i] = weight;
        if (context.drops) {
          const Float keep = hn::LoadU(d, scratch.keep + at);
          product = hn::Mul(product, keep);
          weights[i] = hn::Mul(weight, keep);
        }
        gradients[i] = hn::Mul(hn::Mul(weight, scale), hn::Sub(product, total));
      }
      if (row + 1 == end) weights[1] = gradients[1] = zero();
      Arithmetic::store_gradients(weights, gradients, row, row + 1 < end, column, scratch);
    }
  }
}

template <class Arithmetic>
void backward_block(const TileContext& context, const Panel& panel, const Segments& segments,
                    int64_t key_block) {
  const AttentionScratch& scratch = context.scratch;
  const KeyTokens keys = context.key_tokens(key_block);
  for (const Segment& segment : segments) {
    Arithmetic::multiply_scores(context, panel, segment);
    Arithmetic::multiply_values(context, panel, segment);
    if (segment.masked) mask_scores(segment, panel.tokens, keys, scratch.scores);
    if (context.drops) find_kept(segment, panel.tokens, keys, context.dropout, scratch.keep);
    find_gradients<Arithmetic>(context, panel, segment);
    Arithmetic::multiply_gradients(context, panel, segment, key_block);
  }
}

HWY_INLINE float dot_product(const float* a, const float* b, int64_t count) {
  const FloatTag d;
  Float sums = zero();
  int64_t i = 0;
  for (; i + float_lanes <= count; i += float_lanes)
    sums = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), sums);
  float total = hn::GetLane(hn::SumOfLanes(d, sums));
  for (; i < count; ++i) total += a[i] * b[i];
  return total;
}

// Loads q, dout, logsumexp and the sum of out * dout of one panel.
template <class Arithmetic>
void begin_panel(const TileContext& context, const Panel& panel, int64_t head) {
  const AttentionJob& job = *context.job;
  const AttentionScratch& scratch = context.scratch;
  const int64_t lanes = panel.index * attention_block;
  const int64_t token = context.sample * job.shape.query_length + panel.first;
  auto* staged = reinterpret_cast<float*>(scratch.rows);
  for (int64_t i = 0; i < attention_block; ++i) {
    float shift = infinity, total = 0;
    if (i < panel.count) {
      const float value = job.logsumexp_read[(token + i) * job.shape.query_heads + head];
      if (value != -infinity) shift = value;
      const ConstSpan out = job.out_read.at(token + i, head * context.size);
      const ConstSpan gradient = job.dout.at(token + i, head * context.size);
      const float* a = widen(out.data, out.dtype, context.size, staged);
      const float* b = widen(gradient.data, gradient.dtype, context.size, staged + context.padded);
      total = dot_product(a, b, context.size);
    }
    scratch.maximum[lanes + i] = shift;
    scratch.sum[lanes + i] = total;
  }
  Arithmetic::pack_queries(context, panel, head);
  Arithmetic::pack_gradients(context, panel, head);
  zero_words(scratch.sums_across + panel.index * context.padded * tile_columns,
             context.padded * tile_columns);
}

// Writes dq.
void end_panel(const TileContext& context, const Panel& panel, int64_t head) {
  const AttentionJob& job = *context.job;
  const AttentionScratch& scratch = context.scratch;
  const float* sums = scratch.sums_across + panel.index * context.padded * tile_columns;
  transpose(reinterpret_cast<const uint32_t*>(sums), tile_columns, ceil_divide(context.size, int64_t{4}) * 4,
            panel.groups * attention_group, scratch.rows, context.padded);
  const int64_t token = context.sample * job.shape.query_length + panel.first;
  for (int64_t i = 0; i < panel.count; ++i) {
    const Span to = job.dq.at(token + i, head * context.size);
    narrow(reinterpret_cast<const float*>(scratch.rows) + i * context.padded, to.data, to.dtype,
           context.size);
  }
}

template <class Arithmetic>
void backward_tile_of(const AttentionJob& job, int64_t tile, int thread) {
  const AttentionShape& shape = job.shape;
  const AttentionGrid& grid = job.grid;
  const int64_t chunk = tile % grid.chunks;
  const int64_t key_head = tile / grid.chunks % shape.key_heads;
  const int64_t sample = tile / grid.chunks / shape.key_heads;
  const int64_t heads = shape.query_heads / shape.key_heads;
  TileContext context(job, AttentionDirection::backward, thread, sample);
  AttentionScratch& scratch = context.scratch;
  const int64_t sums = shape.key_length * context.padded;
  if (grid.chunks > 1) {
    scratch.key_sums = job.partial_sums + tile * 2 * sums;
    scratch.value_sums = scratch.key_sums + sums;
  }
  zero_words(scratch.key_sums, sums);
  zero_words(scratch.value_sums, sums);

  int64_t computed = 0;
  // Heads in turn within a unit of query blocks, so that every chunk gets units of all weights.
  for (int64_t item = chunk; item < grid.units_per_head * heads; item += grid.chunks) {
    const int64_t unit = grid.units_per_head - 1 - item / heads;
    const int64_t head = key_head * heads + item % heads;
    context.set_head(head);
    Panel panels[attention_max_panels];
    const int64_t count = HWY_MIN(grid.panels, grid.query_blocks - unit * grid.panels);
    for (int64_t p = 0; p < count; ++p) {
      panels[p] = context.make_panel(p, unit * grid.panels + p);
      begin_panel<Arithmetic>(context, panels[p], head);
    }
    for (int64_t block = 0; block < grid.key_blocks; ++block) {
      bool packed = false;
      for (int64_t p = 0; p < count; ++p) {
        const Segments segments = context.segments_of(panels[p], block);
        if (segments.count == 0) continue;
        if (!packed) Arithmetic::pack_keys(context, key_head, block, AttentionDirection::backward);
        packed = true;
        ++computed;
        backward_block<Arithmetic>(context, panels[p], segments, block);
      }
    }
    for (int64_t p = 0; p < count; ++p) end_panel(context, panels[p], head);
  }
  if (job.options.computed_blocks != nullptr)
    job.options.computed_blocks->fetch_add(computed, std::memory_order_relaxed);
  if (grid.chunks > 1) return;
  for (int64_t key = 0; key < shape.key_length; ++key) {
    const int64_t token = sample * shape.key_length + key;
    const Span dk = job.dk.at(token, key_head * context.size);
    const Span dv = job.dv.at(token, key_head * context.size);
    narrow(scratch.key_sums + key * context.padded, dk.data, dk.dtype, context.size);
    narrow(scratch.value_sums + key * context.padded, dv.data, dv.dtype, context.size);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
