// The backward tile of attention, over an `Arithmetic` as in attention_forward-inl.h. Compiled once per
// target, and once more with bf16 dot products.
//
// With G = dout and Z = scale P (D - sum(out * dout)), keys as rows and queries in the lanes:
//   S^T = K Q^T,  D^T = V G^T,  dV += P^T G,  dK += Z^T Q,  dQ^T += K^T Z^T
// One pass over the blocks computes all three gradients: dQ of a panel is finished when its keys have been
// walked; dK and dV are summed in fp32 scratch.
#if defined(ATHANOR_KERNELS_CPU_ATTENTION_BACKWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_ATTENTION_BACKWARD_INL_H
#undef ATHANOR_KERNELS_CPU_ATTENTION_BACKWARD_INL_H
#else
#define ATHANOR_KERNELS_CPU_ATTENTION_BACKWARD_INL_H
#endif

#include <atomic>

#include "athanor/kernels/cpu/attention_context-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

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
      const float value = *reinterpret_cast<const float*>(job.logsumexp_read.at(token + i, head).data);
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
inline void end_panel(const TileContext& context, const Panel& panel, int64_t head) {
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
