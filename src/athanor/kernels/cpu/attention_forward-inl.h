// The forward tile of attention, over an `Arithmetic` that says how tiles are packed, multiplied and stored
// between products. Compiled once per target, and once more with bf16 dot products.
//
// Tiles of scores stand with keys as rows and queries in the vector lanes, so that the products read keys and
// values where they lie and softmax needs no sums across lanes: S^T = K Q^T, O^T += V^T P^T.
#if defined(ATHANOR_KERNELS_CPU_ATTENTION_FORWARD_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_ATTENTION_FORWARD_INL_H
#undef ATHANOR_KERNELS_CPU_ATTENTION_FORWARD_INL_H
#else
#define ATHANOR_KERNELS_CPU_ATTENTION_FORWARD_INL_H
#endif

#include <atomic>
#include <cmath>

#include "athanor/kernels/cpu/attention_context-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// Takes the block's scores into the running maximum; leaves what the exponents are shifted by, and the
// factors of what was summed before. `scale` >= 0.
HWY_NOINLINE inline void update_maximum(const Segments& segments, int64_t groups, float scale,
                                        const float* scores, float* maximum, float* shift, float* rescale) {
  const FloatTag d;
  for (int64_t group = 0; group < groups; ++group) {
    for (int64_t column = group * attention_group; column < (group + 1) * attention_group;
         column += float_lanes) {
      Float most = splat(-infinity), other = most;
      for (const Segment& segment : segments) {
        if (group < segment.first_group || group >= segment.first_group + segment.groups) continue;
        const float* score = scores + segment.first_row * tile_columns + column;
        int64_t row = 0;
        for (; row + 2 <= segment.rows; row += 2, score += 2 * tile_columns) {
          most = hn::Max(most, hn::LoadU(d, score));
          other = hn::Max(other, hn::LoadU(d, score + tile_columns));
        }
        if (row < segment.rows) most = hn::Max(most, hn::LoadU(d, score));
      }
      most = hn::Mul(hn::Max(most, other), splat(scale));
      const Float before = hn::LoadU(d, maximum + column);
      const Float now = hn::Max(before, most);
      // While no key is visible the shift is 0, so that no exponent is infinity - infinity.
      const Float shifted = hn::IfThenZeroElse(hn::Eq(now, splat(-infinity)), now);
      hn::StoreU(now, d, maximum + column);
      hn::StoreU(shifted, d, shift + column);
      hn::StoreU(weight_of(hn::Sub(before, shifted)), d, rescale + column);
    }
  }
}

// Exponentials of rows of scores into weights, `kVectors` vectors of columns from `column` on; adds them to
// `sum`.
template <class Arithmetic, int kVectors>
HWY_INLINE void find_weights_of(const TileContext& context, const Segment& segment, int64_t column,
                                float* sum) {
  const FloatTag d;
  const AttentionScratch& scratch = context.scratch;
  const Float scale = splat(static_cast<float>(context.job->options.scale));
  Float shift[static_cast<size_t>(kVectors)], total[static_cast<size_t>(kVectors)];
  ATHANOR_UNROLL
  for (int v = 0; v < kVectors; ++v) {
    shift[v] = hn::LoadU(d, scratch.shift + column + v * float_lanes);
    total[v] = hn::LoadU(d, sum + column + v * float_lanes);
  }
  const int64_t end = segment.first_row + segment.rows;
  for (int64_t row = segment.first_row; row < end; row += 2) {
    const bool both = row + 1 < end;
    const int64_t at = row * tile_columns + column, after = at + (both ? tile_columns : 0);
    ATHANOR_UNROLL
    for (int v = 0; v < kVectors; ++v) {
      const int64_t i = v * float_lanes;
      Float weight0 = weight_of(hn::MulSub(hn::LoadU(d, scratch.scores + at + i), scale, shift[v]));
      Float weight1 = weight_of(hn::MulSub(hn::LoadU(d, scratch.scores + after + i), scale, shift[v]));
      if (!both) weight1 = zero();
      total[v] = hn::Add(total[v], hn::Add(weight0, weight1));
      if (context.drops) {
        weight0 = hn::Mul(weight0, hn::LoadU(d, scratch.keep + at + i));
        weight1 = hn::Mul(weight1, hn::LoadU(d, scratch.keep + after + i));
      }
      Arithmetic::store_weights(weight0, weight1, row, column + i, scratch);
    }
  }
  ATHANOR_UNROLL
  for (int v = 0; v < kVectors; ++v) hn::StoreU(total[v], d, sum + column + v * float_lanes);
}

template <class Arithmetic>
HWY_NOINLINE void find_weights(const TileContext& context, const Segment& segment, float* sum) {
  const int64_t end = first_vector(segment) + vector_count(segment);
  int64_t v = first_vector(segment);
  for (; v + 4 <= end; v += 4) find_weights_of<Arithmetic, 4>(context, segment, v * float_lanes, sum);
  for (; v < end; ++v) find_weights_of<Arithmetic, 1>(context, segment, v * float_lanes, sum);
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

// Nothing seen yet; or what earlier parts gave, which is one more key whose score is their logsumexp and
// whose value is their result.
inline void begin_softmax(const TileContext& context, const Panel& panel, int64_t head) {
  const AttentionJob& job = *context.job;
  const AttentionScratch& scratch = context.scratch;
  const int64_t lanes = panel.index * attention_block;
  for (int64_t i = lanes; i < lanes + attention_block; ++i) {
    scratch.maximum[i] = -infinity;
    scratch.sum[i] = 0;
  }
  begin_sums_across(context, panel, job.out_before, head);
  if (!job.logsumexp_before.present()) return;
  const int64_t token = context.sample * job.shape.query_length + panel.first;
  for (int64_t i = 0; i < panel.count; ++i) {
    const float earlier = *reinterpret_cast<const float*>(job.logsumexp_before.at(token + i, head).data);
    scratch.maximum[lanes + i] = earlier;
    scratch.sum[lanes + i] = earlier == -infinity ? 0 : 1;
  }
}

// Divides by the sums, writes out and logsumexp.
inline void finish_panel(const TileContext& context, const Panel& panel, int64_t head) {
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
    *reinterpret_cast<float*>(job.logsumexp.at(token + i, head).data) = value;
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
  Fetcher fetcher;
  TileContext context(job, AttentionDirection::forward, thread, sample, fetcher);
  context.set_head(head);

  Panel panels[attention_max_panels];
  const int64_t count = HWY_MIN(grid.panels, grid.query_blocks - unit * grid.panels);
  for (int64_t p = 0; p < count; ++p) {
    panels[p] = context.make_panel(p, unit * grid.panels + p);
    Arithmetic::pack_queries(context, panels[p], head);
    begin_softmax(context, panels[p], head);
  }
  // So that writing `out` at the end does not wait for its cache lines.
  for (int64_t p = 0; p < count; ++p)
    fetch_rows(fetcher.panels, context, job.out, sample * shape.query_length + panels[p].first, head,
               panels[p].count);
  pace_panels(context, panels, count, AttentionDirection::forward);
  int64_t computed = 0;
  Step step = next_step(context, panels, count, 0);
  while (step.block < grid.key_blocks) {
    const Step next = next_step(context, panels, count, step.block + 1);
    fetcher.block.clear();
    fetch_keys(context, key_head, next.block);
    fetcher.block.spread_over(step.panels * product_steps(context, AttentionDirection::forward));
    context.take_keys<Arithmetic>(key_head, step.block, AttentionDirection::forward);
    for (int64_t p = 0; p < count; ++p)
      if (step.segments[p].count > 0)
        forward_block<Arithmetic>(context, panels[p], step.segments[p], step.block);
    computed += step.panels;
    step = next;
  }
  for (int64_t p = 0; p < count; ++p) finish_panel(context, panels[p], head);
  if (job.options.computed_blocks != nullptr)
    job.options.computed_blocks->fetch_add(computed, std::memory_order_relaxed);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
