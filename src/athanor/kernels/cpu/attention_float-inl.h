// Attention in fp32 arithmetic; 16-bit tensors are converted when packed. Compiled once per target.
#if defined(ATHANOR_KERNELS_CPU_ATTENTION_FLOAT_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_ATTENTION_FLOAT_INL_H
#undef ATHANOR_KERNELS_CPU_ATTENTION_FLOAT_INL_H
#else
#define ATHANOR_KERNELS_CPU_ATTENTION_FLOAT_INL_H
#endif

#include "athanor/kernels/cpu/attention_context-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// Words are fp32 values; weights stay where the scores were, score gradients where the value products were.
struct FloatArithmetic {
  static HWY_INLINE float* floats(uint32_t* words) { return reinterpret_cast<float*>(words); }

  // Queries or their gradients: rows for the products that sum over queries, and across.
  static void pack_panel(const TileContext& context, const Panel& panel, ConstRows from, int64_t head,
                         uint32_t* rows, uint32_t* across) {
    const int64_t lanes = panel.groups * attention_group;
    load_float_rows(from, context.sample * context.job->shape.query_length + panel.first, head * context.size,
                    panel.count, context.size, context.padded, floats(rows));
    zero_words(rows + panel.count * context.padded, (lanes - panel.count) * context.padded);
    transpose(rows, context.padded, lanes, ceil_divide(context.size, int64_t{4}) * 4, across, tile_columns);
  }
  static void pack_queries(const TileContext& context, const Panel& panel, int64_t head) {
    const AttentionScratch& scratch = context.scratch;
    uint32_t* rows =
        scratch.query_rows == nullptr ? scratch.rows : rows_of_panel(context, scratch.query_rows, panel);
    pack_panel(context, panel, context.job->q, head, rows, across(context, scratch.queries_across, panel));
  }
  static void pack_gradients(const TileContext& context, const Panel& panel, int64_t head) {
    const AttentionScratch& scratch = context.scratch;
    pack_panel(context, panel, context.job->dout, head, rows_of_panel(context, scratch.gradient_rows, panel),
               across(context, scratch.gradients_across, panel));
  }
  static void pack_keys(const TileContext& context, int64_t key_head, int64_t block, AttentionDirection) {
    const AttentionJob& job = *context.job;
    const int64_t token = context.sample * job.shape.key_length + block * attention_block;
    const int64_t count = context.keys_of(block);
    load_float_rows(job.k, token, key_head * context.size, count, context.size, context.padded,
                    floats(context.keys));
    load_float_rows(job.v, token, key_head * context.size, count, context.size, context.padded,
                    floats(context.values));
  }

  static void multiply_scores(const TileContext& context, const Panel& panel, const Segment& segment) {
    const AttentionScratch& scratch = context.scratch;
    multiply_keys(context, panel, segment, context.keys, scratch.queries_across, scratch.scores);
  }
  static void multiply_values(const TileContext& context, const Panel& panel, const Segment& segment) {
    const AttentionScratch& scratch = context.scratch;
    multiply_keys(context, panel, segment, context.values, scratch.gradients_across, scratch.value_products);
  }
  static void multiply_out(const TileContext& context, const Segment& segment, bool rescale, float* out) {
    const AttentionScratch& scratch = context.scratch;
    const float* values = floats(context.values) + segment.first_row * context.padded;
    const int64_t first = first_vector(segment) * float_lanes;
    const float* weights = scratch.scores + segment.first_row * tile_columns + first;
    if (rescale) {
      multiply<FloatDot, true, Into::rescale>(*context.fetcher, context.size, vector_count(segment),
                                              segment.rows, values, context.padded, weights, tile_columns,
                                              out + first, tile_columns, scratch.rescale + first);
    } else {
      multiply<FloatDot, true, Into::accumulate>(*context.fetcher, context.size, vector_count(segment),
                                                 segment.rows, values, context.padded, weights, tile_columns,
                                                 out + first, tile_columns);
    }
  }
  static void multiply_gradients(const TileContext& context, const Panel& panel, const Segment& segment,
                                 int64_t key_block) {
    const AttentionScratch& scratch = context.scratch;
    const int64_t padded = context.padded;
    const int64_t first = first_vector(segment) * float_lanes;
    const int64_t queries = HWY_MIN(segment.groups * attention_group, panel.count - first);
    const int64_t tile = segment.first_row * tile_columns + first;
    const int64_t sums = (key_block * attention_block + segment.first_row) * padded;
    const int64_t vectors = padded / float_lanes;
    multiply<FloatDot, false, Into::accumulate>(
        *context.fetcher, segment.rows, vectors, queries, scratch.scores + tile, tile_columns,
        floats(rows_of_panel(context, scratch.gradient_rows, panel)) + first * padded, padded,
        scratch.value_sums + sums, padded);
    multiply<FloatDot, false, Into::accumulate>(
        *context.fetcher, segment.rows, vectors, queries, scratch.value_products + tile, tile_columns,
        floats(rows_of_panel(context, scratch.query_rows, panel)) + first * padded, padded,
        scratch.key_sums + sums, padded);
    float* dq = scratch.sums_across + panel.index * padded * tile_columns + first;
    multiply<FloatDot, true, Into::accumulate>(*context.fetcher, context.size, vector_count(segment),
                                               segment.rows,
                                               floats(context.keys) + segment.first_row * padded, padded,
                                               scratch.value_products + tile, tile_columns, dq, tile_columns);
  }

  static HWY_INLINE void store_weights(Float weight0, Float weight1, int64_t row, int64_t column,
                                       const AttentionScratch& scratch) {
    float* to = scratch.scores + row * tile_columns + column;
    hn::StoreU(weight0, FloatTag(), to);
    hn::StoreU(weight1, FloatTag(), to + tile_columns);
  }
  static HWY_INLINE void store_gradients(const Float* weights, const Float* gradients, int64_t row, bool both,
                                         int64_t column, const AttentionScratch& scratch) {
    float* weight = scratch.scores + row * tile_columns + column;
    float* gradient = scratch.value_products + row * tile_columns + column;
    hn::StoreU(weights[0], FloatTag(), weight);
    hn::StoreU(gradients[0], FloatTag(), gradient);
    if (!both) return;
    hn::StoreU(weights[1], FloatTag(), weight + tile_columns);
    hn::StoreU(gradients[1], FloatTag(), gradient + tile_columns);
  }

 private:
  static HWY_INLINE uint32_t* rows_of_panel(const TileContext& context, uint32_t* rows, const Panel& panel) {
    return rows + panel.index * attention_block * context.padded;
  }
  static HWY_INLINE uint32_t* across(const TileContext& context, uint32_t* tiles, const Panel& panel) {
    return tiles + panel.index * context.padded * tile_columns;
  }
  static void multiply_keys(const TileContext& context, const Panel& panel, const Segment& segment,
                            uint32_t* keys, uint32_t* tiles, float* products) {
    const int64_t first = first_vector(segment) * float_lanes;
    multiply<FloatDot, false, Into::overwrite>(
        *context.fetcher, segment.rows, vector_count(segment), context.size,
        floats(keys) + segment.first_row * context.padded, context.padded,
        floats(across(context, tiles, panel)) + first, tile_columns,
        products + segment.first_row * tile_columns + first, tile_columns);
  }
};

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
