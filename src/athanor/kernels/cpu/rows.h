// Plain views of operands that CPU kernels take, and the grids that they work on.
//
// Called by the kernels of this folder and by their adapters. Thread safety: values.
//
// An activation is `tokens` rows; the elements of one token are contiguous, and consecutive tokens are
// `stride` elements apart (a slice of a wider row has a larger stride). Types: fp32, bf16, fp16; fp64
// where a kernel says so.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "athanor/device/thread_team.h"
#include "athanor/ir/dtype.h"

namespace athanor::cpu {

// Consecutive elements of one row.
struct ConstSpan {
  const std::byte* data = nullptr;
  DType dtype = DType::fp32;
};
struct Span {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;

  operator ConstSpan() const { return {data, dtype}; }  // NOLINT(google-explicit-constructor)
};

struct ConstRows {
  const std::byte* data = nullptr;
  DType dtype = DType::fp32;
  int64_t stride = 0;

  bool present() const { return data != nullptr; }
  ConstSpan at(int64_t row, int64_t column = 0) const {
    return {data + (row * stride + column) * static_cast<int64_t>(size_of(dtype)), dtype};
  }
};

struct Rows {
  std::byte* data = nullptr;
  DType dtype = DType::fp32;
  int64_t stride = 0;

  bool present() const { return data != nullptr; }
  Span at(int64_t row, int64_t column = 0) const {
    return {data + (row * stride + column) * static_cast<int64_t>(size_of(dtype)), dtype};
  }
  operator ConstRows() const { return {data, dtype, stride}; }  // NOLINT(google-explicit-constructor)
};

template <class T>
ConstRows rows_of(const T* data, int64_t stride) {
  return {reinterpret_cast<const std::byte*>(data), dtype_of<T>::value, stride};
}
template <class T>
Rows rows_of(T* data, int64_t stride) {
  return {reinterpret_cast<std::byte*>(data), dtype_of<T>::value, stride};
}

// Kernels work in fp32 on pieces of this many elements, which they widen from and narrow to the storage
// type in a buffer on the stack.
inline constexpr int64_t chunk_elements = 1024;

// Elements of a tile of elementwise work: large against the cost of handing it out, small against a tensor.
inline constexpr int64_t tile_elements = 16384;

// Ends the process: a kernel was handed a type that the table does not offer it.
[[noreturn]] void unsupported_type(DType dtype);

constexpr int64_t ceil_divide(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

// Tokens of a tile of work on whole tokens: about tile_elements, and enough to share what is set up for them.
constexpr int64_t tokens_per_tile(int64_t token_elements) {
  return std::max<int64_t>(8, tile_elements / std::max<int64_t>(1, token_elements));
}

// Lengths of pieces of scratch, so that each starts on a cache line of its own.
constexpr int64_t align_floats(int64_t count) {
  return ceil_divide(count, 16) * 16;
}

// Calls span(row, column, count) for pieces that cover `rows` x `features`, in parallel. `compact` says that
// every operand's stride equals `features`: then the whole is one long row 0. The grid depends on shapes
// only.
template <class Span>
void for_spans(ThreadTeam& team, int64_t rows, int64_t features, bool compact, Span&& span) {
  if (rows <= 0 || features <= 0) return;
  if (compact) {
    const int64_t elements = rows * features;
    team.parallel_for(ceil_divide(elements, tile_elements), [&](int64_t tile, int) {
      const int64_t begin = tile * tile_elements;
      span(int64_t{0}, begin, std::min(tile_elements, elements - begin));
    });
    return;
  }
  const int64_t rows_per_tile = std::max<int64_t>(1, tile_elements / features);
  team.parallel_for(ceil_divide(rows, rows_per_tile), [&](int64_t tile, int) {
    const int64_t end = std::min(rows, (tile + 1) * rows_per_tile);
    for (int64_t row = tile * rows_per_tile; row < end; ++row) span(row, int64_t{0}, features);
  });
}

}  // namespace athanor::cpu
