// Vector parts of the attention kernels: products of tiles, softmax, masks, dropout, transposes. Compiled
// once per target, and once more with bf16 dot products; included after foreach_target.h.
#if defined(ATHANOR_KERNELS_CPU_ATTENTION_VECTORS_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef ATHANOR_KERNELS_CPU_ATTENTION_VECTORS_INL_H
#undef ATHANOR_KERNELS_CPU_ATTENTION_VECTORS_INL_H
#else
#define ATHANOR_KERNELS_CPU_ATTENTION_VECTORS_INL_H
#endif

#include <cstdint>
#include <limits>

#include "athanor/kernels/cpu/attention_plan.h"
#include "athanor/kernels/cpu/vector-inl.h"

#ifndef ATHANOR_UNROLL
#if defined(__clang__)
#define ATHANOR_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ATHANOR_UNROLL _Pragma("GCC unroll 16")
#endif
#endif

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

using WordTag = hn::RebindToUnsigned<FloatTag>;
using IntegerTag = hn::RebindToSigned<FloatTag>;
using Word = hn::Vec<WordTag>;

inline constexpr int64_t tile_columns = attention_block;
inline constexpr int64_t vectors_per_group = attention_group / float_lanes;
inline constexpr float infinity = std::numeric_limits<float>::infinity();

// e^x for x <= 0 and little above: 0 below -87.3, NaN stays NaN; error below 1.5 units in the last place. The
// rounded multiple of ln 2 is read off the low bits of a sum with a large constant, already biased.
HWY_INLINE Float weight_of(Float x) {
  const FloatTag d;
  const Float magic = splat(12582912.0f + 127.0f);
  const Float shifted = hn::MulAdd(x, splat(1.44269504f), magic);
  const Float whole = hn::Sub(shifted, magic);
  Float rest = hn::NegMulAdd(whole, splat(0.693359375f), x);
  rest = hn::NegMulAdd(whole, splat(-2.12194440e-4f), rest);
  Float sum = hn::MulAdd(rest, splat(1.3933730714e-3f), splat(8.3692202918e-3f));
  sum = hn::MulAdd(sum, rest, splat(4.1666464197e-2f));
  sum = hn::MulAdd(sum, rest, splat(0.16666504613f));
  sum = hn::MulAdd(sum, rest, splat(0.50000000135f));
  sum = hn::MulAdd(sum, rest, splat(1.0f));
  sum = hn::MulAdd(sum, rest, splat(1.0f));
  const Float scale = hn::BitCast(d, hn::ShiftLeft<23>(hn::BitCast(WordTag(), shifted)));
  return hn::IfThenZeroElse(hn::Lt(x, splat(-87.3f)), hn::Mul(sum, scale));
}

// ---- Fetching ahead ---------------------------------------------------------------------------------------
//
// Rows of fused projections lie too far apart for the processor to foresee, so the next ones are brought into
// the second-level cache a few cache lines at a time, between the steps of the products.

class Ahead {
 public:
  void clear() { count_ = next_ = 0; }
  // `rows` of `bytes`, `stride` bytes apart.
  void add(const std::byte* first, int64_t stride, int64_t bytes, int64_t rows) {
    if (rows > 0) streams_[count_++] = {first, stride, bytes, rows, 0};
  }
  // From now on each call fetches so many lines that `calls` fetch all.
  void spread_over(int64_t calls) {
    int64_t lines = 0;
    for (int64_t i = next_; i < count_; ++i)
      lines += streams_[i].rows * ceil_divide(streams_[i].bytes, int64_t{64});
    pace_ = ceil_divide(lines, calls);
  }
  HWY_INLINE void fetch() {
    if (next_ < count_) fetch_lines();
  }

 private:
  struct Stream {
    const std::byte* row;
    int64_t stride, bytes, rows, offset;
  };

  void fetch_lines() {
    for (int64_t i = 0; i < pace_ && next_ < count_; ++i) {
      Stream& stream = streams_[next_];
      __builtin_prefetch(stream.row + stream.offset, 0, 2);
      stream.offset += 64;
      if (stream.offset < stream.bytes) continue;
      stream.offset = 0;
      stream.row += stream.stride;
      if (--stream.rows == 0) ++next_;
    }
  }

  static constexpr int64_t max_streams = 8;
  Stream streams_[max_streams];
  int64_t count_ = 0, next_ = 0, pace_ = 0;
};

// What the next block needs, and at a slower pace what the next panels need.
struct Fetcher {
  Ahead block, panels;
  HWY_INLINE void fetch() {
    block.fetch();
    panels.fetch();
  }
};

// ---- Products of tiles ----------------------------------------------------------------------------------
//
// C [M rows][N columns] = A B, summed over `depth`; columns lie in the vector lanes, A is read word by word.
// `Dot` says what a word is and how two are multiplied and added.

struct FloatDot {
  using Word = float;
  using Vector = Float;
  static HWY_INLINE Float load(const float* from) { return hn::LoadU(FloatTag(), from); }
  static HWY_INLINE Float repeat(const float* from) { return hn::Set(FloatTag(), *from); }
  static HWY_INLINE Float add(Float a, Float b, Float sum) { return hn::MulAdd(a, b, sum); }
};

enum class Into { overwrite, accumulate, rescale };  // rescale: C = C * factors[column] + A B

// Rows of A: element (m, k) at a[m * stride + k], or a[k * stride + m] when kAcross.
template <class Dot, int kRows, int kVectors, bool kAcross, Into kInto>
HWY_INLINE void multiply_micro(const typename Dot::Word* HWY_RESTRICT a, int64_t a_stride,
                               const typename Dot::Word* HWY_RESTRICT b, int64_t b_stride,
                               float* HWY_RESTRICT c, int64_t c_stride, int64_t depth,
                               const float* HWY_RESTRICT factors) {
  // What is there comes first: its loads overlap with the products before.
  Float sums[static_cast<size_t>(kRows)][static_cast<size_t>(kVectors)];
  ATHANOR_UNROLL
  for (int m = 0; m < kRows; ++m) {
    ATHANOR_UNROLL
    for (int n = 0; n < kVectors; ++n) {
      const float* from = c + m * c_stride + n * float_lanes;
      if constexpr (kInto == Into::overwrite) sums[m][n] = zero();
      if constexpr (kInto == Into::accumulate) sums[m][n] = hn::LoadU(FloatTag(), from);
      if constexpr (kInto == Into::rescale)
        sums[m][n] = hn::Mul(hn::LoadU(FloatTag(), from), hn::LoadU(FloatTag(), factors + n * float_lanes));
    }
  }
  const int64_t a_row = kAcross ? 1 : a_stride;
  const int64_t a_step = kAcross ? a_stride : 1;
  for (int64_t k = 0; k < depth; ++k) {
    typename Dot::Vector columns[static_cast<size_t>(kVectors)];
    ATHANOR_UNROLL
    for (int n = 0; n < kVectors; ++n) columns[n] = Dot::load(b + n * float_lanes);
    ATHANOR_UNROLL
    for (int m = 0; m < kRows; ++m) {
      const auto element = Dot::repeat(a + m * a_row);
      ATHANOR_UNROLL
      for (int n = 0; n < kVectors; ++n) sums[m][n] = Dot::add(element, columns[n], sums[m][n]);
    }
    a += a_step;
    b += b_stride;
  }
  ATHANOR_UNROLL
  for (int m = 0; m < kRows; ++m) {
    ATHANOR_UNROLL
    for (int n = 0; n < kVectors; ++n) hn::StoreU(sums[m][n], FloatTag(), c + m * c_stride + n * float_lanes);
  }
}

template <class Dot, int kVectors, bool kAcross, Into kInto>
HWY_NOINLINE void multiply_columns(int64_t rows, int64_t depth, const typename Dot::Word* a, int64_t a_stride,
                                   const typename Dot::Word* b, int64_t b_stride, float* c, int64_t c_stride,
                                   const float* factors, Fetcher& fetcher) {
  const int64_t a_row = kAcross ? 1 : a_stride;
  int64_t m = 0;
  for (; m + 6 <= rows; m += 6) {
    fetcher.fetch();
    multiply_micro<Dot, 6, kVectors, kAcross, kInto>(a + m * a_row, a_stride, b, b_stride, c + m * c_stride,
                                                     c_stride, depth, factors);
  }
  if (m + 4 <= rows) {
    multiply_micro<Dot, 4, kVectors, kAcross, kInto>(a + m * a_row, a_stride, b, b_stride, c + m * c_stride,
                                                     c_stride, depth, factors);
    m += 4;
  }
  for (; m < rows; ++m)
    multiply_micro<Dot, 1, kVectors, kAcross, kInto>(a + m * a_row, a_stride, b, b_stride, c + m * c_stride,
                                                     c_stride, depth, factors);
}

// `vectors` columns of vectors. As many sums as the registers hold: 6 x 4 of 32, 6 x 2 of 16.
template <class Dot, bool kAcross, Into kInto>
HWY_INLINE void multiply(Fetcher& fetcher, int64_t rows, int64_t vectors, int64_t depth,
                         const typename Dot::Word* a, int64_t a_stride, const typename Dot::Word* b,
                         int64_t b_stride, float* c, int64_t c_stride, const float* factors = nullptr) {
  while (vectors > 0) {
    int64_t step;
#if HWY_TARGET <= HWY_AVX3
    step = vectors == 5 ? 3 : HWY_MIN(vectors, int64_t{4});
    if (step == 4) {
      multiply_columns<Dot, 4, kAcross, kInto>(rows, depth, a, a_stride, b, b_stride, c, c_stride, factors,
                                               fetcher);
    } else if (step == 3) {
      multiply_columns<Dot, 3, kAcross, kInto>(rows, depth, a, a_stride, b, b_stride, c, c_stride, factors,
                                               fetcher);
    } else  // NOLINT(readability-misleading-indentation)
#else
    step = HWY_MIN(vectors, int64_t{2});
#endif
        if (step == 2) {
      multiply_columns<Dot, 2, kAcross, kInto>(rows, depth, a, a_stride, b, b_stride, c, c_stride, factors,
                                               fetcher);
    } else {
      multiply_columns<Dot, 1, kAcross, kInto>(rows, depth, a, a_stride, b, b_stride, c, c_stride, factors,
                                               fetcher);
    }
    vectors -= step;
    b += step * float_lanes;
    c += step * float_lanes;
    if (kInto == Into::rescale) factors += step * float_lanes;
  }
}

// ---- Moving tiles -----------------------------------------------------------------------------------------

// to[column][row] = from[row][column] for words; rows and columns are multiples of 4.
HWY_NOINLINE inline void transpose(const uint32_t* HWY_RESTRICT from, int64_t from_stride, int64_t rows,
                                   int64_t columns, uint32_t* HWY_RESTRICT to, int64_t to_stride) {
#if HWY_TARGET == HWY_SCALAR
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t column = 0; column < columns; ++column)
      to[column * to_stride + row] = from[row * from_stride + column];
#else
  const hn::FixedTag<uint32_t, 4> d;
  const hn::FixedTag<uint64_t, 2> wide;
  for (int64_t row = 0; row < rows; row += 4) {
    const uint32_t* source = from + row * from_stride;
    uint32_t* target = to + row;
    for (int64_t column = 0; column < columns; column += 4) {
      const auto r0 = hn::LoadU(d, source + column);
      const auto r1 = hn::LoadU(d, source + from_stride + column);
      const auto r2 = hn::LoadU(d, source + 2 * from_stride + column);
      const auto r3 = hn::LoadU(d, source + 3 * from_stride + column);
      const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
      const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
      const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
      const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
      uint32_t* out = target + column * to_stride;
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * to_stride);
      hn::StoreU(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * to_stride);
    }
  }
#endif
}

// fp32 rows [count][padded] from rows of any type, zero past `size`.
HWY_INLINE void load_float_rows(ConstRows from, int64_t first_row, int64_t column, int64_t count,
                                int64_t size, int64_t padded, float* HWY_RESTRICT to) {
  for (int64_t row = 0; row < count; ++row, to += padded) {
    const ConstSpan span = from.at(first_row + row, column);
    const float* source = widen(span.data, span.dtype, size, to);
    int64_t i = 0;
    if (source != to) {
      for (; i + float_lanes <= size; i += float_lanes)
        hn::StoreU(hn::LoadU(FloatTag(), source + i), FloatTag(), to + i);
      for (; i < size; ++i) to[i] = source[i];
    }
    for (i = size; i < padded; ++i) to[i] = 0;
  }
}

HWY_INLINE void zero_words(void* to, int64_t words) {
  auto* word = static_cast<uint32_t*>(to);
  int64_t i = 0;
  for (; i + float_lanes <= words; i += float_lanes) hn::StoreU(hn::Zero(WordTag()), WordTag(), word + i);
  for (; i < words; ++i) word[i] = 0;
}

// ---- Masks and dropout ------------------------------------------------------------------------------------

// Tokens of one key block: of the block's first key on.
struct KeyTokens {
  const int32_t *positions, *documents, *indices;
};
// Of one panel.
struct QueryTokens {
  const int32_t *positions, *documents, *lower, *indices;
};

// Scores of invisible pairs of the segment become -infinity.
HWY_NOINLINE inline void mask_scores(const Segment& segment, const QueryTokens& queries,
                                     const KeyTokens& keys, float* scores) {
  const IntegerTag integers;
  const FloatTag d;
  const int64_t first = segment.first_group * attention_group;
  for (int64_t column = first; column < first + segment.groups * attention_group; column += float_lanes) {
    const auto position = hn::LoadU(integers, queries.positions + column);
    const auto document = hn::LoadU(integers, queries.documents + column);
    const auto lower = hn::LoadU(integers, queries.lower + column);
    for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
      const auto key_position = hn::Set(integers, keys.positions[row]);
      const auto hidden = hn::Or(hn::Gt(key_position, position), hn::Lt(key_position, lower));
      const auto visible = hn::AndNot(hidden, hn::Eq(document, hn::Set(integers, keys.documents[row])));
      float* score = scores + row * tile_columns + column;
      const Float masked = hn::IfThenElse(hn::RebindMask(d, visible), hn::LoadU(d, score), splat(-infinity));
      hn::StoreU(masked, d, score);
    }
  }
}

#if HWY_TARGET != HWY_SCALAR
// High and low halves of the products of the lanes with `factor`.
HWY_INLINE void multiply_wide(Word x, uint32_t factor, Word& high, Word& low) {
  const WordTag d;
  const hn::RepartitionToWide<WordTag> wide;
  const Word factors = hn::Set(d, factor);
  const auto even = hn::MulEven(x, factors);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(wide, x))), factors);
  high = hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
  low = hn::OddEven(hn::BitCast(d, hn::ShiftLeft<32>(odd)), hn::BitCast(d, even));
}
#endif

// What dropout needs of one (sample, head).
struct DropoutStream {
  DropoutKey key;
  uint32_t sample_low = 0, sample_high = 0;
  uint32_t threshold = 0;
  float scale = 1;
};

// dropout_words of kernels/dropout_coordinates.h, a query index a lane.
HWY_INLINE void dropout_words_of(const DropoutStream& stream, Word query_index, uint32_t key_block,
                                 Word words[4]) {
  const WordTag d;
#if HWY_TARGET == HWY_SCALAR
  const int64_t sample = static_cast<int64_t>(uint64_t{stream.sample_high} << 32 | stream.sample_low);
  const auto lanes =
      dropout_words(stream.key, sample, static_cast<int32_t>(hn::GetLane(query_index)), key_block);
  for (size_t i = 0; i < 4; ++i) words[i] = hn::Set(d, lanes[i]);
#else
  Word w0 = hn::Set(d, key_block), w1 = query_index;
  Word w2 = hn::Set(d, stream.sample_low), w3 = hn::Set(d, stream.sample_high);
  uint32_t key0 = stream.key.key[0], key1 = stream.key.key[1];
  for (int round = 0; round < 10; ++round) {
    Word high0, low0, high1, low1;
    multiply_wide(w0, 0xD2511F53u, high0, low0);
    multiply_wide(w2, 0xCD9E8D57u, high1, low1);
    w0 = hn::Xor(hn::Xor(high1, w1), hn::Set(d, key0));
    w1 = low1;
    w2 = hn::Xor(hn::Xor(high0, w3), hn::Set(d, key1));
    w3 = low0;
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  words[0] = w0;
  words[1] = w1;
  words[2] = w2;
  words[3] = w3;
#endif
}

// Multipliers of the weights: 0 where dropped, 1 / (1 - probability) where kept. Four keys in a row share
// a block of random words.
HWY_NOINLINE inline void find_kept(const Segment& segment, const QueryTokens& queries, const KeyTokens& keys,
                                   const DropoutStream& stream, float* keep) {
  const WordTag d;
  const IntegerTag integers;
  const Word sign = hn::Set(d, 0x80000000u);
  const auto threshold = hn::BitCast(integers, hn::Xor(hn::Set(d, stream.threshold), sign));
  const int64_t first = segment.first_group * attention_group;
  for (int64_t column = first; column < first + segment.groups * attention_group; column += float_lanes) {
    const Word query_index = hn::BitCast(d, hn::LoadU(integers, queries.indices + column));
    Word words[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
    int64_t held = -1;
    for (int64_t row = segment.first_row; row < segment.first_row + segment.rows; ++row) {
      const auto key_index = static_cast<uint32_t>(keys.indices[row]);
      if (key_index / 4 != held) {
        held = key_index / 4;
        dropout_words_of(stream, query_index, key_index / 4, words);
      }
      const auto dropped = hn::Lt(hn::BitCast(integers, hn::Xor(words[key_index % 4], sign)), threshold);
      const Float factor = hn::IfThenZeroElse(hn::RebindMask(FloatTag(), dropped), splat(stream.scale));
      hn::StoreU(factor, FloatTag(), keep + row * tile_columns + column);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
