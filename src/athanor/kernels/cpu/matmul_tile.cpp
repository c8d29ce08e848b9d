#include "athanor/kernels/cpu/matmul_tile.h"

#include <algorithm>
#include <cstring>

#include "athanor/kernels/cpu/activation.h"
#include "athanor/kernels/cpu/highway_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "athanor/kernels/cpu/matmul_tile.cpp"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "athanor/kernels/cpu/vector-inl.h"

#ifndef ATHANOR_MATMUL_TILE_ONCE
#define ATHANOR_MATMUL_TILE_ONCE
namespace athanor::cpu {
// Rows of A that are packed at a time: its strips are read from the second cache, wide enough to take whole
// cache lines of an operand that is not depth-contiguous.
inline constexpr int64_t group_rows = 64;
// Strips of B are at most this wide on any instruction set, and divide it.
inline constexpr int64_t widest_strip = 48;
}  // namespace athanor::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace athanor::cpu {
namespace HWY_NAMESPACE {

// A strip of A times a strip of B is summed in strip_rows x strip_vectors registers; with strip_vectors of B
// and one broadcast element of A they fill the register file (32 or 16), and there are enough independent
// sums to hide the latency of the fused multiply-add.
inline constexpr int64_t depth_block = product_depth_block;
inline constexpr int64_t strip_rows = float_lanes == 16 ? 8 : 4;
inline constexpr int64_t strip_vectors = 3;
inline constexpr int64_t strip_columns = strip_vectors * float_lanes;
static_assert(widest_strip % strip_columns == 0 && group_rows % strip_rows == 0);

// How a strip of A is packed: row by row, or interleaved: all rows of k = 0, then of k = 1 ...
enum class StripLayout { rows, interleaved };

// c[strip_rows, vectors * lanes] (+)= a b over `depth` <= depth_block.
template <int64_t vectors, StripLayout layout>
void multiply_strips(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t depth,
                     float* HWY_RESTRICT c, int64_t c_stride, bool accumulate) {
  constexpr int64_t row_step = layout == StripLayout::rows ? depth_block : 1;
  constexpr int64_t depth_step = layout == StripLayout::rows ? 1 : strip_rows;
  const FloatTag d;
  Float sums[static_cast<size_t>(strip_rows)][static_cast<size_t>(vectors)];
#pragma GCC unroll 8
  for (int64_t i = 0; i < strip_rows; ++i) {
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) sums[i][j] = zero();
  }
  // The sums in memory come from far away by then; fetch them while multiplying.
#pragma GCC unroll 8
  for (int64_t i = 0; i < strip_rows; ++i) {
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) hwy::Prefetch(c + i * c_stride + j * float_lanes);
  }
  for (int64_t k = 0; k < depth; ++k) {
    Float right[static_cast<size_t>(vectors)];
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) right[j] = hn::Load(d, b + j * float_lanes);
#pragma GCC unroll 8
    for (int64_t i = 0; i < strip_rows; ++i) {
      const Float left = hn::Set(d, a[i * row_step]);
#pragma GCC unroll 3
      for (int64_t j = 0; j < vectors; ++j) sums[i][j] = hn::MulAdd(left, right[j], sums[i][j]);
    }
    a += depth_step;
    b += strip_columns;
  }
#pragma GCC unroll 8
  for (int64_t i = 0; i < strip_rows; ++i) {
#pragma GCC unroll 3
    for (int64_t j = 0; j < vectors; ++j) {
      float* to = c + i * c_stride + j * float_lanes;
      hn::StoreU(accumulate ? hn::Add(sums[i][j], hn::LoadU(d, to)) : sums[i][j], d, to);
    }
  }
}

// The same for a strip that is cut off at the edge of the tile: only [rows, columns] of it are written.
template <int64_t vectors, StripLayout layout>
void multiply_edge_strips(const float* a, const float* b, int64_t depth, float* c, int64_t c_stride,
                          bool accumulate, int64_t rows, int64_t columns) {
  HWY_ALIGN float whole[static_cast<size_t>(strip_rows * strip_columns)];
  multiply_strips<vectors, layout>(a, b, depth, whole, strip_columns, false);
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float sum = whole[i * strip_columns + j];
      c[i * c_stride + j] = accumulate ? c[i * c_stride + j] + sum : sum;
    }
  }
}

template <StripLayout layout>
HWY_INLINE void multiply_strip(const float* a, const float* b, int64_t depth, float* c, int64_t c_stride,
                               bool accumulate, int64_t rows, int64_t columns) {
  const int64_t vectors = ceil_divide(columns, float_lanes);
  if (rows == strip_rows && columns == vectors * float_lanes) {
    if (vectors == 3) return multiply_strips<3, layout>(a, b, depth, c, c_stride, accumulate);
    if (vectors == 2) return multiply_strips<2, layout>(a, b, depth, c, c_stride, accumulate);
    return multiply_strips<1, layout>(a, b, depth, c, c_stride, accumulate);
  }
  if (vectors == 3)
    return multiply_edge_strips<3, layout>(a, b, depth, c, c_stride, accumulate, rows, columns);
  if (vectors == 2)
    return multiply_edge_strips<2, layout>(a, b, depth, c, c_stride, accumulate, rows, columns);
  return multiply_edge_strips<1, layout>(a, b, depth, c, c_stride, accumulate, rows, columns);
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
void pack_b(const ProductOperand& b, int64_t columns, int64_t first_k, int64_t depth, float* to) {
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
void pack_a(const ProductOperand& a, int64_t first_row, int64_t rows, int64_t first_k, int64_t depth,
            float* to) {
  const int64_t padded = ceil_divide(rows, strip_rows) * strip_rows;
  if (a.depth_contiguous) {
    for (int64_t i = 0; i < padded; ++i) {
      float* row = to + i * depth_block;
      if (i >= rows) {
        std::memset(row, 0, static_cast<size_t>(depth) * sizeof(float));
        continue;
      }
      if (i + 4 < rows)
        prefetch_bytes(a.at(first_row + i + 4, first_k), depth * static_cast<int64_t>(size_of(a.dtype)));
      const float* values = widen(a.at(first_row + i, first_k), a.dtype, depth, row);
      if (values != row) std::memcpy(row, values, static_cast<size_t>(depth) * sizeof(float));
    }
    return;
  }
  HWY_ALIGN float widened[static_cast<size_t>(group_rows)] = {};
  const hn::CappedTag<float, static_cast<size_t>(strip_rows)> d;
  for (int64_t k = 0; k < depth; ++k) {
    if (k + 8 < depth)
      prefetch_bytes(a.at(first_row, first_k + k + 8), rows * static_cast<int64_t>(size_of(a.dtype)));
    const float* values = widen(a.at(first_row, first_k + k), a.dtype, rows, widened);
    if (values != widened && rows < padded) {
      std::memcpy(widened, values, static_cast<size_t>(rows) * sizeof(float));
      values = widened;
    }
    float* strip = to + k * strip_rows;
    for (int64_t i = 0; i < padded; i += strip_rows) {
      for (int64_t lane = 0; lane < strip_rows; lane += static_cast<int64_t>(hn::Lanes(d)))
        hn::StoreU(hn::LoadU(d, values + i + lane), d, strip + lane);
      strip += depth_block * strip_rows;
    }
  }
}

// Brings a block of an operand into the second cache, a few lines at a time, while another is multiplied:
// packing by itself would wait for memory while the multipliers wait for it.
class BlockPrefetch {
 public:
  // Vectors [first, first + vectors), elements [first_k, first_k + depth); `calls` of step() bring it all.
  BlockPrefetch(const ProductOperand& operand, int64_t first, int64_t vectors, int64_t first_k, int64_t depth,
                int64_t calls) {
    if (vectors <= 0 || depth <= 0) return;
    const auto size = static_cast<int64_t>(size_of(operand.dtype));
    next_ = operand.at(first, first_k);
    row_step_ = operand.stride * size;
    row_bytes_ = (operand.depth_contiguous ? depth : vectors) * size;
    rows_left_ = operand.depth_contiguous ? vectors : depth;
    per_step_ = ceil_divide(rows_left_ * ceil_divide(row_bytes_, line), std::max<int64_t>(1, calls));
  }
  HWY_INLINE void step() {
    for (int64_t i = 0; i < per_step_ && rows_left_ > 0; ++i) {
      __builtin_prefetch(next_ + offset_, 0, 2);
      offset_ += line;
      if (offset_ >= row_bytes_) {
        offset_ = 0;
        next_ += row_step_;
        --rows_left_;
      }
    }
  }

 private:
  static constexpr int64_t line = 64;
  const std::byte* next_ = nullptr;
  int64_t row_step_ = 0, row_bytes_ = 0, rows_left_ = 0, per_step_ = 0, offset_ = 0;
};

void multiply_tile(const ProductOperand& a, const ProductOperand& b, int64_t rows, int64_t columns,
                   int64_t depth, float* c, int64_t c_stride, bool accumulate, float* scratch) {
  float* const packed_a = scratch;
  float* const packed_b = scratch + group_rows * depth_block;
  for (int64_t first_k = 0; first_k < depth; first_k += depth_block) {
    const int64_t block = std::min(depth_block, depth - first_k);
    const bool add = accumulate || first_k > 0;
    pack_b(b, columns, first_k, block, packed_b);
    const int64_t next_block = std::min(depth_block, depth - first_k - block);
    const int64_t strips = ceil_divide(columns, strip_columns);
    BlockPrefetch next_b(b, 0, columns, first_k + block, next_block, ceil_divide(rows, strip_rows) * strips);
    for (int64_t first_row = 0; first_row < rows; first_row += group_rows) {
      const int64_t group = std::min(group_rows, rows - first_row);
      pack_a(a, first_row, group, first_k, block, packed_a);
      const bool last_group = first_row + group == rows;
      BlockPrefetch next_a(
          a, last_group ? 0 : first_row + group,
          last_group ? std::min(group_rows, rows) : std::min(group_rows, rows - first_row - group),
          last_group ? first_k + block : first_k, last_group ? next_block : block,
          ceil_divide(group, strip_rows) * strips);
      for (int64_t i = 0; i < group; i += strip_rows) {
        const float* a_strip = packed_a + i * depth_block;
        float* c_row = c + (first_row + i) * c_stride;
        const int64_t strip_height = std::min(strip_rows, group - i);
        for (int64_t j = 0; j < columns; j += strip_columns) {
          const int64_t strip_width = std::min(strip_columns, columns - j);
          next_a.step();
          next_b.step();
          if (a.depth_contiguous) {
            multiply_strip<StripLayout::rows>(a_strip, packed_b + j * depth_block, block, c_row + j, c_stride,
                                              add, strip_height, strip_width);
          } else {
            multiply_strip<StripLayout::interleaved>(a_strip, packed_b + j * depth_block, block, c_row + j,
                                                     c_stride, add, strip_height, strip_width);
          }
        }
      }
    }
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

HWY_EXPORT(multiply_tile);
HWY_EXPORT(add_to_row);
HWY_EXPORT(narrow_row);

int64_t tile_product_scratch_bytes(int64_t columns) {
  const int64_t padded = ceil_divide(columns, widest_strip) * widest_strip;
  return (group_rows + padded) * product_depth_block * static_cast<int64_t>(sizeof(float));
}

void tile_product(const ProductOperand& a, const ProductOperand& b, int64_t rows, int64_t columns,
                  int64_t depth, float* c, int64_t c_stride, bool accumulate, std::byte* scratch) {
  if (depth == 0 && !accumulate) {
    for (int64_t row = 0; row < rows; ++row) std::fill_n(c + row * c_stride, columns, 0.0F);
  }
  HWY_DYNAMIC_DISPATCH(multiply_tile)
  (a, b, rows, columns, depth, c, c_stride, accumulate, reinterpret_cast<float*>(scratch));
}

void finish_tile(int64_t rows, int64_t columns, float* sums, int64_t sums_stride, ConstSpan bias,
                 ConstRows addend, Rows result, Rows activated) {
  for (int64_t row = 0; row < rows; ++row) {
    float* const totals = sums + row * sums_stride;
    if (bias.data != nullptr) HWY_DYNAMIC_DISPATCH(add_to_row)(totals, bias, columns);
    if (addend.present()) HWY_DYNAMIC_DISPATCH(add_to_row)(totals, addend.at(row), columns);
    if (activated.present())
      gelu_row({reinterpret_cast<const std::byte*>(totals), DType::fp32}, activated.at(row), columns);
    if (result.present()) HWY_DYNAMIC_DISPATCH(narrow_row)(totals, result.at(row), columns);
  }
}

}  // namespace athanor::cpu
#endif  // HWY_ONCE
