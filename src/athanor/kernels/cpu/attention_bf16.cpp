// Attention tiles of bf16 tensors with AVX-512 dot products of bf16 pairs.
//
// Compiled with flags of its own (room.cmake), because this version of Highway has no such target; it is
// called only on processors that have the instructions. Everything here lives in namespaces of its own or is
// inlined, so that no code compiled with these flags is shared with other files.
#include "athanor/kernels/cpu/attention_plan.h"

#if defined(__AVX512BF16__)

#if !defined(__clang__)
// GCC 12 takes its own "undefined" vectors inside intrinsics for uninitialised variables.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#include <immintrin.h>

#define HWY_COMPILE_ONLY_STATIC
#define HWY_BASELINE_TARGETS HWY_AVX3
#include "athanor/kernels/cpu/highway_targets.h"
// clang-format off: after what chooses the targets.
#include <hwy/highway.h>
// clang-format on

#include "athanor/kernels/cpu/attention_backward-inl.h"
#include "athanor/kernels/cpu/attention_forward-inl.h"

static_assert(HWY_TARGET == HWY_AVX3, "the flags of this file must make Highway choose AVX-512");

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// A word is two bf16 values that meet two others: sum += a.low * b.low + a.high * b.high.
struct PairDot {
  using Word = uint32_t;
  using Vector = hn::Vec<WordTag>;
  static HWY_INLINE Vector load(const uint32_t* from) { return hn::LoadU(WordTag(), from); }
  static HWY_INLINE Vector repeat(const uint32_t* from) { return hn::Set(WordTag(), *from); }
  static HWY_INLINE Float add(Vector a, Vector b, Float sum) {
    return Float{
        _mm512_dpbf16_ps(sum.raw, reinterpret_cast<__m512bh>(a.raw), reinterpret_cast<__m512bh>(b.raw))};
  }
};

struct PairArithmetic {
  // bf16 rows [count][padded], zero past `size`.
  static void load_rows(ConstRows from, int64_t first_row, int64_t column, int64_t count, int64_t size,
                        int64_t padded, uint32_t* to) {
    auto* target = reinterpret_cast<uint16_t*>(to);
    for (int64_t row = 0; row < count; ++row, target += padded) {
      const auto* source = reinterpret_cast<const uint16_t*>(from.at(first_row + row, column).data);
      for (int64_t i = 0; i < padded; i += 32) {
        const auto part = [&](int64_t end) {
          return static_cast<__mmask32>(end - i >= 32 ? ~uint32_t{0}
                                        : end <= i    ? 0
                                                      : (uint32_t{1} << (end - i)) - 1);
        };
        _mm512_mask_storeu_epi16(target + i, part(padded), _mm512_maskz_loadu_epi16(part(size), source + i));
      }
    }
  }
  // to [count / 2][padded] words: rows 2r and 2r + 1 of bf16 rows side by side.
  static void pair_rows(const uint32_t* from, int64_t count, int64_t padded, uint32_t* to) {
    const auto* row = reinterpret_cast<const uint16_t*>(from);
    for (int64_t r = 0; r < count; r += 2, row += 2 * padded, to += padded) {
      for (int64_t i = 0; i < padded; i += 16) {
        const auto words = [](const uint16_t* at) {
          return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
        };
        const __m512i low = words(row + i), high = words(row + padded + i);
        _mm512_storeu_si512(to + i, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
      }
    }
  }

  // Queries or their gradients: across, and if `pairs` pairs of rows for the products that sum over queries.
  static void pack_panel(const TileContext& context, const Panel& panel, ConstRows from, int64_t head,
                         uint32_t* across, uint32_t* pairs) {
    uint32_t* rows = context.scratch.rows;
    const int64_t lanes = panel.groups * attention_group, words = context.padded / 2;
    load_rows(from, context.sample * context.job->shape.query_length + panel.first, head * context.size,
              panel.count, context.size, context.padded, rows);
    zero_words(rows + panel.count * words, (lanes - panel.count) * words);
    transpose(rows, words, lanes, words, across + panel.index * context.padded * tile_columns, tile_columns);
    if (pairs != nullptr)
      pair_rows(rows, lanes, context.padded, pairs + panel.index * attention_block * context.padded);
  }
  static void pack_queries(const TileContext& context, const Panel& panel, int64_t head) {
    pack_panel(context, panel, context.job->q, head, context.scratch.queries_across,
               context.scratch.query_rows);
  }
  static void pack_gradients(const TileContext& context, const Panel& panel, int64_t head) {
    pack_panel(context, panel, context.job->dout, head, context.scratch.gradients_across,
               context.scratch.gradient_rows);
  }
  // Forward multiplies by keys as rows and values as pairs of rows; backward by both as rows and by pairs of
  // keys.
  static void pack_keys(const TileContext& context, int64_t key_head, int64_t block,
                        AttentionDirection direction) {
    const AttentionJob& job = *context.job;
    const AttentionScratch& scratch = context.scratch;
    const bool backward = direction == AttentionDirection::backward;
    const int64_t token = context.sample * job.shape.key_length + block * attention_block;
    const int64_t count = context.keys_of(block), padded = context.padded, words = padded / 2;
    load_rows(job.k, token, key_head * context.size, count, context.size, padded, context.keys);
    load_rows(job.v, token, key_head * context.size, count, context.size, padded,
              backward ? context.values : scratch.rows);
    uint32_t* source = backward ? context.keys : scratch.rows;
    if (count % 2 != 0) zero_words(source + count * words, words);
    pair_rows(source, count, padded, backward ? context.key_pairs : context.values);
  }

  static void multiply_scores(const TileContext& context, const Panel& panel, const Segment& segment) {
    multiply_keys(context, panel, segment, context.keys, context.scratch.queries_across,
                  context.scratch.scores);
  }
  static void multiply_values(const TileContext& context, const Panel& panel, const Segment& segment) {
    multiply_keys(context, panel, segment, context.values, context.scratch.gradients_across,
                  context.scratch.value_products);
  }
  static void multiply_out(const TileContext& context, const Segment& segment, bool rescale, float* out) {
    const AttentionScratch& scratch = context.scratch;
    const int64_t first = first_vector(segment) * float_lanes, pairs = ceil_divide(segment.rows, int64_t{2});
    const uint32_t* values = context.values + segment.first_row / 2 * context.padded;
    const uint32_t* weights = scratch.weights + segment.first_row / 2 * tile_columns + first;
    if (rescale) {
      multiply<PairDot, true, Into::rescale>(*context.fetcher, context.size, vector_count(segment), pairs,
                                             values, context.padded, weights, tile_columns, out + first,
                                             tile_columns, scratch.rescale + first);
    } else {
      multiply<PairDot, true, Into::accumulate>(*context.fetcher, context.size, vector_count(segment), pairs,
                                                values, context.padded, weights, tile_columns, out + first,
                                                tile_columns);
    }
  }
  static void multiply_gradients(const TileContext& context, const Panel& panel, const Segment& segment,
                                 int64_t key_block) {
    const AttentionScratch& scratch = context.scratch;
    const int64_t padded = context.padded, row_words = tile_columns / 2;
    const int64_t first = first_vector(segment) * float_lanes;
    const int64_t queries = HWY_MIN(segment.groups * attention_group, panel.count - first);
    const int64_t query_pairs = ceil_divide(queries, int64_t{2});
    const int64_t tile = segment.first_row * row_words + first / 2;
    const int64_t sums = (key_block * attention_block + segment.first_row) * padded;
    const int64_t rows = panel.index * attention_block * padded + first / 2 * padded;
    multiply<PairDot, false, Into::accumulate>(
        *context.fetcher, segment.rows, padded / float_lanes, query_pairs, scratch.weights + tile, row_words,
        scratch.gradient_rows + rows, padded, scratch.value_sums + sums, padded);
    multiply<PairDot, false, Into::accumulate>(
        *context.fetcher, segment.rows, padded / float_lanes, query_pairs, scratch.score_gradients + tile,
        row_words, scratch.query_rows + rows, padded, scratch.key_sums + sums, padded);
    multiply<PairDot, true, Into::accumulate>(
        *context.fetcher, context.size, vector_count(segment), ceil_divide(segment.rows, int64_t{2}),
        context.key_pairs + segment.first_row / 2 * padded, padded,
        scratch.gradient_pairs + segment.first_row / 2 * tile_columns + first, tile_columns,
        scratch.sums_across + panel.index * padded * tile_columns + first, tile_columns);
  }

  // Weights as pairs of key rows: [32][64] words.
  static HWY_INLINE void store_weights(Float weight0, Float weight1, int64_t row, int64_t column,
                                       const AttentionScratch& scratch) {
    _mm512_storeu_si512(scratch.weights + row / 2 * tile_columns + column,
                        interleave(narrow_rows(weight0, weight1)));
  }
  // Weights and score gradients as rows [64][64] of bf16, score gradients as pairs of rows too.
  static HWY_INLINE void store_gradients(const Float* weights, const Float* gradients, int64_t row, bool,
                                         int64_t column, const AttentionScratch& scratch) {
    store_rows(narrow_rows(weights[0], weights[1]), scratch.weights, row, column);
    const __m512i narrowed = narrow_rows(gradients[0], gradients[1]);
    store_rows(narrowed, scratch.score_gradients, row, column);
    _mm512_storeu_si512(scratch.gradient_pairs + row / 2 * tile_columns + column, interleave(narrowed));
  }

 private:
  // The lanes of row0 in the low half, of row1 in the high half.
  static HWY_INLINE __m512i narrow_rows(Float row0, Float row1) {
    return reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(row1.raw, row0.raw));
  }
  static HWY_INLINE __m512i interleave(__m512i rows) {
    const __m512i order = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23,
                                           7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return _mm512_permutexvar_epi16(order, rows);
  }
  static HWY_INLINE void store_rows(__m512i rows, uint32_t* tile, int64_t row, int64_t column) {
    auto* to = reinterpret_cast<uint16_t*>(tile) + row * tile_columns + column;
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(rows));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to + tile_columns), _mm512_extracti64x4_epi64(rows, 1));
  }
  static void multiply_keys(const TileContext& context, const Panel& panel, const Segment& segment,
                            const uint32_t* keys, const uint32_t* tiles, float* products) {
    const int64_t first = first_vector(segment) * float_lanes, words = context.padded / 2;
    multiply<PairDot, false, Into::overwrite>(
        *context.fetcher, segment.rows, vector_count(segment), ceil_divide(context.size, int64_t{2}),
        keys + segment.first_row * words, words, tiles + panel.index * context.padded * tile_columns + first,
        tile_columns, products + segment.first_row * tile_columns + first, tile_columns);
  }
};

void attention_bf16_forward(const AttentionJob& job, int64_t tile, int thread) {
  forward_tile_of<PairArithmetic>(job, tile, thread);
}
void attention_bf16_backward(const AttentionJob& job, int64_t tile, int thread) {
  backward_tile_of<PairArithmetic>(job, tile, thread);
}

}  // namespace HWY_NAMESPACE

AttentionTile bf16_forward_tile() {
  return HWY_NAMESPACE::attention_bf16_forward;
}
AttentionTile bf16_backward_tile() {
  return HWY_NAMESPACE::attention_bf16_backward;
}

}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#else

namespace athanor::cpu {

AttentionTile bf16_forward_tile() {
  return nullptr;
}
AttentionTile bf16_backward_tile() {
  return nullptr;
}

}  // namespace athanor::cpu

#endif
