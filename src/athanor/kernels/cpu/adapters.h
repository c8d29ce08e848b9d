// From the views of the kernel table to the plain operands of the kernels in this folder.
//
// Used by layer_kernels.cpp, step_kernels.cpp, cache_kernels.cpp and local_part.cpp alone. Thread safety:
// pure functions.
#pragma once

#include <cstdint>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/rows.h"
#include "athanor/kernels/kernel.h"

namespace athanor::cpu {

// A tensor as rows: one for each token of [B,S,..]; anything of less than three dims is one compact row.
struct Matrix {
  explicit Matrix(const TensorView& tensor)
      : data(tensor.data),
        dtype(tensor.dtype),
        rows(tensor.shape.rank() > 2 ? tensor.shape.tokens() : 1),
        features(tensor.shape.rank() > 2 ? tensor.shape.elements_per_token() : tensor.shape.elements()),
        stride(tensor.shape.rank() > 2 ? tensor.token_stride : features) {}
  Rows view() const { return {data, dtype, stride}; }

  std::byte* data;
  DType dtype;
  int64_t rows, features, stride;
};

inline Rows optional_rows(const TensorView& tensor) {
  return tensor.present() ? Matrix(tensor).view() : Rows{};
}

inline Span span_of(const TensorView& tensor) {
  return {tensor.data, tensor.dtype};
}

// An operand that is fp32 in every precision: statistics, weight gradients, master weights.
inline float* floats(const TensorView& tensor) {
  ATHANOR_ASSERT(tensor.dtype == DType::fp32, "an operand that must be fp32 is {}", name_of(tensor.dtype));
  return tensor.as<float>();
}

inline double* doubles(const TensorView& tensor) {
  ATHANOR_ASSERT(tensor.dtype == DType::fp64, "an operand that must be fp64 is {}", name_of(tensor.dtype));
  return tensor.as<double>();
}

inline void set_storage_types(KernelTable& table, OperationKind kind, Kernel kernel) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16}) table.set(kind, dtype, kernel);
}

void add_layer_kernels(KernelTable& table);       // layer_kernels.cpp
void add_step_kernels(KernelTable& table);        // step_kernels.cpp
void add_cache_kernels(KernelTable& table);       // cache_kernels.cpp
void add_local_part_kernels(KernelTable& table);  // local_part.cpp

}  // namespace athanor::cpu
