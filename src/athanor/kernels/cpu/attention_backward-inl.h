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

// Weights and score gradients of the segment from its scores and value products, `kVectors` vectors of
// columns from `column` on.
template <class Arithmetic, int kVectors>
HWY_INLINE void find_gradients_of(const TileContext& context, const Panel& panel, const Segment& segment,
                                  int64_t column) {
  const FloatTag d;
  const AttentionScratch& scratch = context.scratch;
  const int64_t lanes = panel.index * attention_block + column;
  const Float scale = splat(static_cast<float>(context.job->options.scale));
  Float shift[static_cast<size_t>(kVectors)], total[static_cast<size_t>(kVectors)];
  ATHANOR_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = hn::LoadU(d, scratch.maximum + lanes + v * float_lanes);
    total[v] = hn::LoadU(d, scratch.sum + lanes + v * float_lanes);
  }
  const int64_t end = segment.first_row + segment.rows;
  for (int64_t row = segment.first_row; row < end; row += 2) {
    const bool both = row + 1 < end;
    ATHANOR_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      Float weights[2], gradients[2];
      ATHANOR_UNROLL
      for (int i = 0; i < 2; ++i) {
        // The second row of an odd end repeats the first, and counts as nothing.
        const int64_t at = (both ? row + i : row) * tile_columns + column + v * float_lanes;
        const Float weight = weight_of(hn::MulSub(hn::LoadU(d, scratch.scores + at), scale, shift[v]));
        Float product = hn::LoadU(d, scratch.value_products + at);
        weights[i] = weight;
        if (context.drops) {
          const Float keep = hn::LoadU(d, scratch.keep + at);
          product = hn::Mul(product, keep);
          weights[i] = hn::Mul(weight, keep);
        }
        gradients[i] = hn::Mul(hn::Mul(weight, scale), hn::Sub(product, total[v]));
      }
      if (!both) weights[1] = gradients[1] = zero();
      Arithmetic::store_gradients(weights, gradients, row, both, column + v * float_lanes, scratch);
    }
  }
}

template <class Arithmetic>
HWY_NOINLINE void find_gradients(const TileContext& context, const Panel& panel, const Segment& segment) {
  const int64_t end = first_vector(segment) + vector_count(segment);
  int64_t v = first_vector(segment);
  for (; v + 4 <= end; v += 4) find_gradients_of<Arithmetic, 4>(context, panel, segment, v * float_lanes);
  for (; v < end; ++v) find_gradients_of<Arithmetic, 1>(context, panel, segment, v * float_lanes);
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
  begin_sums_across(context, panel, job.dq_before, head);
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

// Starts the sums of one block when the tile first comes to it: from those of earlier parts of the ring,
// unless chunks are summed later.
inline void begin_keys(const TileContext& context, int64_t key_head, int64_t block) {
  const AttentionJob& job = *context.job;
  const AttentionScratch& scratch = context.scratch;
  if (scratch.summed[block] != 0) return;
  const int64_t first = block * attention_block, count = context.keys_of(block);
  const auto begin = [&](const ConstRows& before, float* sums) {
    if (before.present() && job.grid.chunks == 1) {
      load_float_rows(before, context.sample * job.shape.key_length + first, key_head * context.size, count,
                      context.size, context.padded, sums);
    } else {
      zero_words(sums, count * context.padded);
    }
  };
  begin(job.dk_before, scratch.key_sums + first * context.padded);
  begin(job.dv_before, scratch.value_sums + first * context.padded);
  scratch.summed[block] = 1;
}

// Writes dk and dv of one block.
inline void write_keys(const TileContext& context, int64_t key_head, int64_t block) {
  const AttentionJob& job = *context.job;
  const AttentionScratch& scratch = context.scratch;
  const int64_t first = block * attention_block;
  for (int64_t key = first; key < first + context.keys_of(block); ++key) {
    const int64_t token = context.sample * job.shape.key_length + key;
    const Span dk = job.dk.at(token, key_head * context.size);
    const Span dv = job.dv.at(token, key_head * context.size);
    narrow(scratch.key_sums + key * context.padded, dk.data, dk.dtype, context.size);
    narrow(scratch.value_sums + key * context.padded, dv.data, dv.dtype, context.size);
  }
  scratch.written[block] = 1;
}

// Some panels of one query head.
struct Unit {
  int64_t head, first_block, panels;
};

// Walks the key blocks that one unit sees. With `last` it is the last of its (sample, key head), so that the
// gradients of a block are complete, and written while they are in the cache, once it has been walked.
template <class Arithmetic>
int64_t backward_unit(TileContext& context, const Unit& unit, const Unit* next_unit, int64_t key_head,
                      bool last) {
  const AttentionJob& job = *context.job;
  Fetcher& fetcher = *context.fetcher;
  context.set_head(unit.head);
  Panel panels[attention_max_panels];
  for (int64_t p = 0; p < unit.panels; ++p) {
    panels[p] = context.make_panel(p, unit.first_block + p);
    begin_panel<Arithmetic>(context, panels[p], unit.head);
  }
  const int64_t sample_token = context.sample * job.shape.query_length;
  const auto rows_of = [&](const Unit& of) {
    return HWY_MIN(of.panels * attention_block, job.shape.query_length - of.first_block * attention_block);
  };
  fetcher.panels.clear();
  fetch_rows(fetcher.panels, context, job.dq, sample_token + unit.first_block * attention_block, unit.head,
             rows_of(unit));
  if (next_unit != nullptr) {
    for (const ConstRows& rows : {job.dout, job.out_read, job.q})
      fetch_rows(fetcher.panels, context, rows, sample_token + next_unit->first_block * attention_block,
                 next_unit->head, rows_of(*next_unit));
  }
  pace_panels(context, panels, unit.panels, AttentionDirection::backward);

  int64_t computed = 0;
  Step step = next_step(context, panels, unit.panels, 0);
  while (step.block < job.grid.key_blocks) {
    const Step next = next_step(context, panels, unit.panels, step.block + 1);
    fetcher.block.clear();
    fetch_keys(context, key_head, next.block);
    if (last) {
      const int64_t token = context.sample * job.shape.key_length + step.block * attention_block;
      for (const Rows& rows : {job.dk, job.dv})
        fetch_rows(fetcher.block, context, rows, token, key_head, context.keys_of(step.block));
    }
    fetcher.block.spread_over(step.panels * product_steps(context, AttentionDirection::backward));
    context.take_keys<Arithmetic>(key_head, step.block, AttentionDirection::backward);
    begin_keys(context, key_head, step.block);
    for (int64_t p = 0; p < unit.panels; ++p)
      if (step.segments[p].count > 0)
        backward_block<Arithmetic>(context, panels[p], step.segments[p], step.block);
    if (last) write_keys(context, key_head, step.block);
    computed += step.panels;
    step = next;
  }
  for (int64_t p = 0; p < unit.panels; ++p) end_panel(context, panels[p], unit.head);
  return computed;
}

template <class Arithmetic>
void backward_tile_of(const AttentionJob& job, int64_t tile, int thread) {
  const AttentionShape& shape = job.shape;
  const AttentionGrid& grid = job.grid;
  const int64_t chunk = tile % grid.chunks;
  const int64_t key_head = tile / grid.chunks % shape.key_heads;
  const int64_t sample = tile / grid.chunks / shape.key_heads;
  const int64_t heads = shape.query_heads / shape.key_heads;
  Fetcher fetcher;
  TileContext context(job, AttentionDirection::backward, thread, sample, fetcher);
  AttentionScratch& scratch = context.scratch;
  int64_t first = 0, end = grid.units_per_head * heads;
  if (grid.chunks > 1) {
    const int64_t sums = shape.key_length * context.padded;
    scratch.key_sums = job.partial_sums + tile * 2 * sums;
    scratch.value_sums = scratch.key_sums + sums;
    scratch.summed = job.partial_summed + tile * grid.key_blocks;
    const int64_t* starts = job.ranges.chunk_starts + sample * (grid.chunks + 1) + chunk;
    first = starts[0];
    end = starts[1];
  }
  for (int64_t block = 0; block < grid.key_blocks; ++block)
    scratch.summed[block] = scratch.written[block] = 0;

  const auto unit_at = [&](int64_t item) {
    const int64_t block = item / heads * grid.panels;
    return Unit{key_head * heads + item % heads, block, HWY_MIN(grid.panels, grid.query_blocks - block)};
  };
  int64_t computed = 0;
  for (int64_t item = first; item < end; ++item) {
    const bool last = item + 1 == end;
    const Unit unit = unit_at(item), next = unit_at(last ? item : item + 1);
    computed +=
        backward_unit<Arithmetic>(context, unit, last ? nullptr : &next, key_head, last && grid.chunks == 1);
  }
  if (job.options.computed_blocks != nullptr)
    job.options.computed_blocks->fetch_add(computed, std::memory_order_relaxed);
  if (grid.chunks > 1) return;
  for (int64_t block = 0; block < grid.key_blocks; ++block) {
    if (scratch.written[block] != 0) continue;
    begin_keys(context, key_head, block);
    write_keys(context, key_head, block);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
