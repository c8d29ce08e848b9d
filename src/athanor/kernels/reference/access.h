// How reference kernels see memory: elements of any float type as doubles, and scratch rows.
//
// Used by the files of this folder alone. Thread safety: pure functions; a Scratch belongs to one execution.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "athanor/base/error.h"
#include "athanor/kernels/kernel.h"

namespace athanor::reference {

// One element of a float tensor (fp64, fp32, bf16, fp16); storing rounds to nearest even.
double load(const TensorView& tensor, int64_t element);
void store(const TensorView& tensor, int64_t element, double value);
// One element of an int32 or int64 tensor.
int64_t load_integer(const TensorView& tensor, int64_t element);

// Elements [first, first + count) as doubles: in place for fp64, else converted into `scratch` [count].
const double* read(const TensorView& tensor, int64_t first, int64_t count, double* scratch);
// Stores `values` to elements [first, first + count), or adds them to what is there.
void write(const TensorView& tensor, int64_t first, int64_t count, const double* values,
           bool accumulate = false);

// The rows along the last dim of a tensor, of which several may make up a token. Tensors of less than three
// dims are compact.
class Rows {
 public:
  explicit Rows(const TensorView& tensor)
      : count_(tensor.shape.rows()), length_(tensor.shape.rank() == 0 ? 1 : tensor.shape[-1]) {
    if (tensor.shape.rank() > 2 && length_ > 0) {
      per_token_ = tensor.shape.elements_per_token() / length_;
      stride_ = tensor.token_stride;
    } else {
      stride_ = length_;
    }
  }
  int64_t count() const { return count_; }
  int64_t length() const { return length_; }
  int64_t offset(int64_t row) const { return row / per_token_ * stride_ + row % per_token_ * length_; }

 private:
  int64_t count_, length_, per_token_ = 1, stride_ = 0;
};

// The element at which a token's part of a [B,S,..] tensor begins.
inline int64_t token_offset(const TensorView& tensor, int64_t token) {
  return token * tensor.token_stride;
}

// Hands out the workspace in rows of doubles.
class Scratch {
 public:
  explicit Scratch(std::span<std::byte> workspace) : rest_(workspace) {}
  double* take(int64_t count) {
    const size_t bytes = static_cast<size_t>(count) * sizeof(double);
    ATHANOR_ASSERT(bytes <= rest_.size(), "workspace too small: {} of {} bytes left", rest_.size(), bytes);
    auto* row = reinterpret_cast<double*>(rest_.data());
    rest_ = rest_.subspan(bytes);
    return row;
  }

 private:
  std::span<std::byte> rest_;
};

// Bytes of that many doubles, for Kernel::workspace_bytes.
constexpr int64_t doubles(int64_t count) {
  return count * static_cast<int64_t>(sizeof(double));
}

using Types = std::span<const OperandType>;

// Sets the kernel of `kind` for every float type.
inline void set_all(KernelTable& table, OperationKind kind, Kernel kernel) {
  for (const DType dtype : {DType::fp64, DType::fp32, DType::bf16, DType::fp16})
    table.set(kind, dtype, kernel);
}

// One per file of this folder; add_reference_kernels() calls them all.
void add_embedding(KernelTable& table);
void add_matmul(KernelTable& table);
void add_norm(KernelTable& table);
void add_elementwise(KernelTable& table);
void add_rotary(KernelTable& table);
void add_attention(KernelTable& table);
void add_cache(KernelTable& table);
void add_loss(KernelTable& table);
void add_vocabulary(KernelTable& table);
void add_local_part(KernelTable& table);
void add_batch(KernelTable& table);
void add_optimizer(KernelTable& table);
void add_lamb(KernelTable& table);

}  // namespace athanor::reference
