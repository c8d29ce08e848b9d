// Elements of a tensor by their compact index, wherever its rows of tokens lie; copies of runs of them.
//
// Called by kernels and by execute, for what is cut along a dim. Thread safety: pure functions.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "athanor/kernels/kernel.h"

namespace athanor {

// The elements of a token are contiguous; tokens may stand apart.
struct TensorElements {
  explicit TensorElements(const TensorView& tensor)
      : data(tensor.data), size(static_cast<int64_t>(size_of(tensor.dtype))) {
    if (tensor.shape.rank() < 2 || tensor.compact()) return;
    row = tensor.shape.elements_per_token();
    stride = tensor.token_stride;
  }
  // Without gaps.
  TensorElements(std::byte* first, DType dtype) : data(first), size(static_cast<int64_t>(size_of(dtype))) {}

  // From `index` on, and how many follow it in memory.
  std::byte* at(int64_t index) const {
    return data + (row == 0 ? index : index / row * stride + index % row) * size;
  }
  int64_t contiguous(int64_t index, int64_t wanted) const {
    return row == 0 ? wanted : std::min(wanted, row - index % row);
  }

  std::byte* data;
  int64_t size, row = 0, stride = 0;  // row 0: compact
};

inline void copy_elements(const TensorElements& from, int64_t source, const TensorElements& to,
                          int64_t target, int64_t count) {
  while (count > 0) {
    const int64_t n = from.contiguous(source, to.contiguous(target, count));
    std::memcpy(to.at(target), from.at(source), static_cast<size_t>(n * to.size));
    source += n;
    target += n;
    count -= n;
  }
}

inline void zero_elements(const TensorElements& to, int64_t target, int64_t count) {
  while (count > 0) {
    const int64_t n = to.contiguous(target, count);
    std::memset(to.at(target), 0, static_cast<size_t>(n * to.size));
    target += n;
    count -= n;
  }
}

}  // namespace athanor
