#include "athanor/kernels/cpu/matmul_tile.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "athanor/kernels/cpu/activation.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/matmul_tile.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// A strip of A times a strip of B is summed in strip_rows x strip_vectors registers; with strip_vectors of B
// and one broadcast element of A they fill the register file (32 or 16), and there are enough independent
// sums to hide the latency of the fused multiply-add.
inline constexpr int64_t strip_rows = float_lanes == 16 ? 8 : 4;
inline constexpr int64_t strip_vectors = 3;
inline constexpr int64_t strip_columns = strip_vectors * float_lanes;
static_assert(row_unit % strip_rows == 0 && column_unit % strip_columns == 0);

// Where the elements of a strip of A are: packed row by row; packed and interleaved: all rows of k = 0, then
// of k = 1 ...; or either way in the operand itself.
enum class StripLayout { rows, interleaved, rows_in_place, interleaved_in_place };

constexpr bool is_interleaved(StripLayout layout) {
  return layout == StripLayout::interleaved || layout == StripLayout::interleaved_in_place;
}

// What a strip of operands in place asks for while it multiplies: rows of A below it, which its neighbour
// will read, or elements of both that much further along the depth, where nobody asked for them before.
struct Ahead {
  int64_t first_row = 0, end_row = 0;
  int64_t elements = 0;  // 0: none
};
inline constexpr int64_t far_elements = 16;

// A strip of sums [strip_rows, vectors * lanes] from a and b over `depth`.
template <int64_t vectors, StripLayout layout>
void multiply_strips(const float* HWY_RESTRICT a, int64_t a_stride, int64_t rows, const float* HWY_RESTRICT b,
                     int64_t b_stride, int64_t depth, const BlockSums& strip, const Ahead& ahead) {
  const FloatTag d;
  const float* row[static_cast<size_t>(strip_rows)];
#pragma GCC unroll 8
  for (int64_t i = 0; i < strip_rows; ++i) {
    // A row beyond the last repeats it; nobody reads its sums.
    if constexpr (layout == StripLayout::rows_in_place) row[i] = a + std::min(i, rows - 1) * a_stride;
    if constexpr (layout == StripLayout::rows) row[i] = a + i * depth_block;
  }
  const int64_t step = layout == StripLayout::interleaved_in_place ? a_stride : strip_rows;
  Float sum[static_cast<size_t>(strip_rows)][static_cast<size_t>(vectors)];
  float* const sums = strip.data;
  const int64_t sums_stride = strip.stride;
  // The sums in memory may come from far away; fetch them while multiplying.
#pragma GCC unroll 8
  for (int64_t i = 0; i < strip_rows; ++i) {
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) {
      sum[i][j] = zero();
      hwy::Prefetch(sums + i * sums_stride + j * float_lanes);
    }
  }
  for (int64_t k = 0; k < depth; ++k) {
    if constexpr (layout == StripLayout::rows_in_place) {
      if (k % 16 == 0) {
        for (int64_t i = ahead.first_row; i < ahead.end_row; ++i) hwy::Prefetch(a + i * a_stride + k);
      }
    }
    Float right[static_cast<size_t>(vectors)];
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) right[j] = hn::LoadU(d, b + j * float_lanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < strip_rows; ++i) {
      const Float left = hn::Set(d, is_interleaved(layout) ? a[i] : row[i][k]);
#pragma GCC unroll 3
      for (int64_t j = 0; j < vectors; ++j) sum[i][j] = hn::MulAdd(left, right[j], sum[i][j]);
    }
    if constexpr (layout == StripLayout::interleaved_in_place) {
      if (ahead.elements > 0) {
        hwy::Prefetch(a + ahead.elements * step);
        for (int64_t j = 0; j < vectors; ++j) hwy::Prefetch(b + ahead.elements * b_stride + j * float_lanes);
      }
    }
    b += b_stride;
    // The next strips are further along the same rows of memory, where no hardware looks ahead.
    if constexpr (layout == StripLayout::interleaved_in_place) hwy::Prefetch(a + 16);
    if constexpr (is_interleaved(layout)) a += step;
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < strip_rows; ++i) {
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) {
      float* to = sums + i * sums_stride + j * float_lanes;
      Float total = sum[i][j];
      if (strip.accumulate) total = hn::Add(total, hn::LoadU(d, to));
      if (strip.bias != nullptr) total = hn::Add(total, hn::LoadU(d, strip.bias + j * float_lanes));
      hn::StoreU(total, d, to);
    }
  }
}

// The same for a strip that is cut off at the edge: only [rows, columns] of it are written.
template <int64_t vectors, StripLayout layout>
void multiply_edge_strips(const float* a, int64_t a_stride, int64_t rows, const float* b, int64_t b_stride,
                          int64_t columns, int64_t depth, const BlockSums& strip, const Ahead& ahead) {
  HWY_ALIGN float whole[static_cast<size_t>(strip_rows * strip_columns)];
  multiply_strips<vectors, layout>(a, a_stride, rows, b, b_stride, depth, {whole, strip_columns}, ahead);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      float& to = strip.data[i * strip.stride + j];
      float total = whole[i * strip_columns + j];
      if (strip.accumulate) total += to;
      if (strip.bias != nullptr) total += strip.bias[j];
      to = total;
    }
  }
}

template <int64_t vectors, StripLayout layout>
HWY_INLINE void multiply_strips_of(const float* a, int64_t a_stride, int64_t rows, const float* b,
                                   int64_t b_stride, int64_t columns, int64_t depth, const BlockSums& strip,
                                   const Ahead& ahead) {
  if (rows == strip_rows && columns == vectors * float_lanes) {
    multiply_strips<vectors, layout>(a, a_stride, rows, b, b_stride, depth, strip, ahead);
  } else {
    multiply_edge_strips<vectors, layout>(a, a_stride, rows, b, b_stride, columns, depth, strip, ahead);
  }
}

#if HWY_TARGET != HWY_SCALAR
// A vector whose 128-bit blocks are the four floats at row, row + 4 stride, row + 8 stride ...
template <class D>
HWY_INLINE hn::Vec<D> load_blocks(D d, const float* row, int64_t stride) {
  if constexpr (hn::MaxLanes(D()) == 4) {
    return hn::LoadU(d, row);
  } else {
    const hn::Half<D> half;
    constexpr auto half_lanes = static_cast<int64_t>(hn::MaxLanes(hn::Half<D>()));
    return hn::Combine(d, load_blocks(half, row + half_lanes * stride, stride),
                       load_blocks(half, row, stride));
  }
}
#endif

// Operands come from far away, in pieces too short for the hardware to see a pattern: packing asks for the
// lines it will read next.
HWY_INLINE void prefetch_bytes(const std::byte* from, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64) hwy::Prefetch(from + i);
}

// to[k * strip_columns + v] = rows[v * stride + k] for v < float_lanes and k < depth.
void transpose_rows(const float* rows, int64_t stride, int64_t depth, float* to) {
  int64_t k = 0;
#if HWY_TARGET != HWY_SCALAR
  const FloatTag d;
  const hn::RepartitionToWide<FloatTag> wide;
  for (; k + 4 <= depth; k += 4) {
    const Float r0 = load_blocks(d, rows + k, stride), r1 = load_blocks(d, rows + stride + k, stride);
    const Float r2 = load_blocks(d, rows + 2 * stride + k, stride);
    const Float r3 = load_blocks(d, rows + 3 * stride + k, stride);
    const auto low01 = hn::BitCast(wide, hn::InterleaveLower(d, r0, r1));
    const auto high01 = hn::BitCast(wide, hn::InterleaveUpper(d, r0, r1));
    const auto low23 = hn::BitCast(wide, hn::InterleaveLower(d, r2, r3));
    const auto high23 = hn::BitCast(wide, hn::InterleaveUpper(d, r2, r3));
    float* out = to + k * strip_columns;
    hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, low01, low23)), d, out);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, low01, low23)), d, out + strip_columns);
    hn::Store(hn::BitCast(d, hn::InterleaveLower(wide, high01, high23)), d, out + 2 * strip_columns);
    hn::Store(hn::BitCast(d, hn::InterleaveUpper(wide, high01, high23)), d, out + 3 * strip_columns);
  }
#endif
  for (; k < depth; ++k) {
    for (int64_t v = 0; v < float_lanes; ++v) to[k * strip_columns + v] = rows[v * stride + k];
  }
}

// Strips of B, one after the other, each [depth_block][strip_columns]; columns beyond the last are zero.
void pack_column_strips(const ProductOperand& whole, int64_t first, int64_t columns, int64_t first_k,
                        int64_t depth, float* to) {
  ProductOperand b = whole;
  b.data = whole.at(first, 0);
  if (b.depth_contiguous) {
    HWY_ALIGN float widened[static_cast<size_t>(float_lanes * depth_block)];
    for (int64_t column = 0; column < columns; column += float_lanes) {
      float* strip = to + column / strip_columns * (depth_block * strip_columns) + column % strip_columns;
      const int64_t present = std::min(float_lanes, columns - column);
      for (int64_t v = column + float_lanes; v < std::min(columns, column + 2 * float_lanes); ++v)
        prefetch_bytes(b.at(v, first_k), depth * static_cast<int64_t>(size_of(b.dtype)));
      if (b.dtype == DType::fp32 && present == float_lanes) {
        transpose_rows(reinterpret_cast<const float*>(b.at(column, first_k)), b.stride, depth, strip);
        continue;
      }
      for (int64_t v = 0; v < float_lanes; ++v) {
        float* row = widened + v * depth_block;
        if (v >= present) {
          std::memset(row, 0, static_cast<size_t>(depth) * sizeof(float));
          continue;
        }
        const float* values = widen(b.at(column + v, first_k), b.dtype, depth, row);
        if (values != row) std::memcpy(row, values, static_cast<size_t>(depth) * sizeof(float));
      }
      transpose_rows(widened, depth_block, depth, strip);
    }
    return;
  }
  HWY_ALIGN float widened[chunk_elements];
  constexpr int64_t piece = chunk_elements / strip_columns * strip_columns;
  for (int64_t begin = 0; begin < columns; begin += piece) {
    const int64_t count = std::min(piece, columns - begin);
    for (int64_t k = 0; k < depth; ++k) {
      if (k + 2 < depth)
        prefetch_bytes(b.at(begin, first_k + k + 2), count * static_cast<int64_t>(size_of(b.dtype)));
      const float* values = widen(b.at(begin, first_k + k), b.dtype, count, widened);
      float* strip = to + begin * depth_block + k * strip_columns;
      int64_t column = 0;
      for (; column + strip_columns <= count; column += strip_columns) {
#pragma GCC unroll 3
        for (int64_t j = 0; j < strip_vectors; ++j)
          hn::Store(hn::LoadU(FloatTag(), values + column + j * float_lanes), FloatTag(),
                    strip + j * float_lanes);
        strip += depth_block * strip_columns;
      }
      for (int64_t j = 0; column < count; column += float_lanes, j += float_lanes) {
        const int64_t rest = count - column;
        hn::Store(rest >= float_lanes ? load(values + column, Whole{}) : load(values + column, Part{rest}),
                  FloatTag(), strip + j);
      }
    }
  }
}

// Strips of A, one after the other, each [strip_rows][depth_block] if it is depth-contiguous, else
// [depth_block][strip_rows]; rows beyond the last are zero.
void pack_row_strips(const ProductOperand& a, int64_t first, int64_t rows, int64_t first_k, int64_t depth,
                     float* to) {
  const int64_t padded = ceil_divide(rows, strip_rows) * strip_rows;
  const auto size = static_cast<int64_t>(size_of(a.dtype));
  if (a.depth_contiguous) {
    for (int64_t i = 0; i < padded; ++i) {
      float* row = to + i * depth_block;
      if (i >= rows) {
        std::memset(row, 0, static_cast<size_t>(depth) * sizeof(float));
        continue;
      }
      if (i + 4 < rows) prefetch_bytes(a.at(first + i + 4, first_k), depth * size);
      const float* values = widen(a.at(first + i, first_k), a.dtype, depth, row);
      if (values != row) std::memcpy(row, values, static_cast<size_t>(depth) * sizeof(float));
    }
    return;
  }
  // A few strips at a time: they lie a power of two apart, and more would share too few sets of the first
  // cache.
  constexpr int64_t group = 64;
  HWY_ALIGN float widened[static_cast<size_t>(group)];
  const hn::CappedTag<float, static_cast<size_t>(strip_rows)> d;
  for (int64_t begin = 0; begin < rows; begin += group) {
    const int64_t count = std::min(group, rows - begin);
    const int64_t padded_count = ceil_divide(count, strip_rows) * strip_rows;
    for (int64_t k = 0; k < depth; ++k) {
      if (k + 8 < depth) prefetch_bytes(a.at(first + begin, first_k + k + 8), count * size);
      const float* values = widen(a.at(first + begin, first_k + k), a.dtype, count, widened);
      if (count < padded_count) {
        if (values != widened) std::memcpy(widened, values, static_cast<size_t>(count) * sizeof(float));
        std::fill(widened + count, widened + padded_count, 0.0F);
        values = widened;
      }
      float* strip = to + begin * depth_block + k * strip_rows;
      for (int64_t i = 0; i < padded_count; i += strip_rows) {
        for (int64_t lane = 0; lane < strip_rows; lane += static_cast<int64_t>(hn::Lanes(d)))
          hn::StoreU(hn::LoadU(d, values + i + lane), d, strip + lane);
        strip += depth_block * strip_rows;
      }
    }
  }
}

// Asks for a run of memory a few lines at a time.
class RunPrefetch {
 public:
  RunPrefetch(std::span<const float> run, int64_t steps)
      : next_(reinterpret_cast<const std::byte*>(run.data())),
        per_step_(ceil_divide(static_cast<int64_t>(run.size_bytes()), std::max<int64_t>(1, steps) * 64) *
                  64) {}
  HWY_INLINE void step() {
    for (int64_t i = 0; i < per_step_; i += 64) __builtin_prefetch(next_ + i, 0, 2);  // to the second cache
    next_ += per_step_;
  }

 private:
  const std::byte* next_;
  int64_t per_step_;
};

template <StripLayout layout>
void multiply_block_as(const RowBlock& a, const ColumnBlock& b, int64_t rows, int64_t columns, int64_t depth,
                       const BlockSums& sums, std::span<const float> next) {
  HWY_ALIGN float
      edge[layout == StripLayout::interleaved_in_place ? static_cast<size_t>(depth_block * strip_rows) : 1] =
          {};
  const int64_t column_strips = ceil_divide(columns, strip_columns);
  RunPrefetch prefetch(next, ceil_divide(rows, strip_rows) * column_strips);
  for (int64_t i = 0; i < rows; i += strip_rows) {
    constexpr bool packed = layout == StripLayout::rows || layout == StripLayout::interleaved;
    const int64_t row_step = packed ? depth_block : layout == StripLayout::rows_in_place ? a.stride : 1;
    const float* a_strip = a.data + i * row_step;
    int64_t a_stride = a.stride;
    const int64_t b_stride = b.in_place ? b.stride : strip_columns;
    const int64_t height = std::min(strip_rows, rows - i);
    if (layout == StripLayout::interleaved_in_place && height < strip_rows) {
      // Rows beyond the last may not even be memory.
      for (int64_t k = 0; k < depth; ++k) std::copy_n(a_strip + k * a_stride, height, edge + k * strip_rows);
      a_strip = edge;
      a_stride = strip_rows;
    }
    for (int64_t j = 0; j < columns; j += strip_columns) {
      const float* b_strip = b.data + (b.in_place ? j : j * depth_block);
      const BlockSums strip{sums.data + i * sums.stride + j, sums.stride, sums.accumulate,
                            sums.bias == nullptr ? nullptr : sums.bias + j};
      const int64_t width = std::min(strip_columns, columns - j);
      prefetch.step();
      const int64_t part = j / strip_columns;
      const Ahead ahead{strip_rows + strip_rows * part / column_strips,
                        strip_rows + strip_rows * (part + 1) / column_strips, i == 0 ? far_elements : 0};
      switch (ceil_divide(width, float_lanes)) {
        case 3:
          multiply_strips_of<3, layout>(a_strip, a_stride, height, b_strip, b_stride, width, depth, strip,
                                        ahead);
          break;
        case 2:
          multiply_strips_of<2, layout>(a_strip, a_stride, height, b_strip, b_stride, width, depth, strip,
                                        ahead);
          break;
        default:
          multiply_strips_of<1, layout>(a_strip, a_stride, height, b_strip, b_stride, width, depth, strip,
                                        ahead);
      }
    }
  }
}

void multiply_block_strips(const RowBlock& a, const ColumnBlock& b, int64_t rows, int64_t columns,
                           int64_t depth, const BlockSums& sums, std::span<const float> next) {
  const auto multiply = [&](auto layout) {
    multiply_block_as<layout()>(a, b, rows, columns, depth, sums, next);
  };
  if (a.in_place && a.interleaved) {
    multiply(std::integral_constant<StripLayout, StripLayout::interleaved_in_place>());
  } else if (a.in_place) {
    multiply(std::integral_constant<StripLayout, StripLayout::rows_in_place>());
  } else if (a.interleaved) {
    multiply(std::integral_constant<StripLayout, StripLayout::interleaved>());
  } else {
    multiply(std::integral_constant<StripLayout, StripLayout::rows>());
  }
}

void add_to_row(float* sums, ConstSpan term, int64_t count) {
  Source source(term);
  for_chunks(count, [&](int64_t first, int64_t chunk) HWY_ATTR {
    const float* values = source.get(first, chunk);
    float* to = sums + first;
    for_vectors(chunk, [&](int64_t i, auto extent) HWY_ATTR {
      store(hn::Add(load(to + i, extent), load(values + i, extent)), to + i, extent);
    });
  });
}

void narrow_row(const float* sums, Span to, int64_t count) {
  narrow(sums, to.data, to.dtype, count);
}

}  // namespace HWY_NAMESPACE
}  // namespace athanor::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace athanor::cpu {

HWY_EXPORT(pack_row_strips);
HWY_EXPORT(pack_column_strips);
HWY_EXPORT(multiply_block_strips);
HWY_EXPORT(add_to_row);
HWY_EXPORT(narrow_row);

void pack_rows(const ProductOperand& a, int64_t first, int64_t count, int64_t first_k, int64_t depth,
               float* to) {
  HWY_DYNAMIC_DISPATCH(pack_row_strips)(a, first, count, first_k, depth, to);
}

void pack_columns(const ProductOperand& b, int64_t first, int64_t count, int64_t first_k, int64_t depth,
                  float* to) {
  HWY_DYNAMIC_DISPATCH(pack_column_strips)(b, first, count, first_k, depth, to);
}

void multiply_block(const RowBlock& a, const ColumnBlock& b, int64_t rows, int64_t columns, int64_t depth,
                    const BlockSums& sums, std::span<const float> next) {
  HWY_DYNAMIC_DISPATCH(multiply_block_strips)
  (a, b, rows, columns, depth, sums, next);
}

void finish_tile(int64_t rows, int64_t columns, float* sums, int64_t sums_stride, ConstSpan bias,
                 ConstRows addend, Rows result, Rows activated) {
  for (int64_t row = 0; row < rows; ++row) {
    float* const totals = sums + row * sums_stride;
    if (bias.data != nullptr) HWY_DYNAMIC_DISPATCH(add_to_row)(totals, bias, columns);
    if (addend.present()) HWY_DYNAMIC_DISPATCH(add_to_row)(totals, addend.at(row), columns);
    if (result.present()) HWY_DYNAMIC_DISPATCH(narrow_row)(totals, result.at(row), columns);
  }
  // Of the sums as stored, so that computing it again from them gives the same bits.
  const ConstRows stored = result.present() ? result : rows_of(sums, sums_stride);
  if (activated.present()) gelu_rows(rows, columns, stored, activated);
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
