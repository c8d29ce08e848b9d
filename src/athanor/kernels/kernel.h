// The seam between programs and kernels: what a kernel is given, and the table it is found in.
//
// Filled by add_reference_kernels() and add_cpu_kernels(), read when a program is loaded: a null entry is an
// error then, never while a step runs. Thread safety: the table is constant once filled; a kernel runs on one
// stream at a time and may be running with other arguments on another.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "athanor/device/thread_team.h"
#include "athanor/ir/graph.h"
#include "athanor/ir/step_inputs.h"

namespace athanor {

// A tensor in memory. Row-major; the elements of one token are contiguous. For shapes that begin with [B,S],
// token t = b*S + s starts at element t * token_stride (a slice of a wider row has a larger stride); all
// other tensors are compact and token_stride is unused.
struct TensorView {
  std::byte* data = nullptr;  // null: an optional operand that is absent
  DType dtype = DType::fp32;
  Shape shape;
  int64_t token_stride = 0;

  bool present() const { return data != nullptr; }
  bool compact() const { return shape.rank() < 2 || token_stride == shape.elements_per_token(); }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
};

// Everything about one execution that is known when the program is loaded.
struct KernelArguments {
  const Attributes* attributes = nullptr;
  std::span<const TensorView> inputs, outputs;  // in the order of the operation's row
  std::span<std::byte> workspace;               // at least what Kernel::workspace_bytes said, 64-byte aligned
  bool accumulate = false;             // rows that accumulate: add to the outputs, else overwrite them
  uint64_t name_hash = 0;              // hash_name(attributes->name) with the layer filled in
  int64_t first = 0;                   // first_of_part() of the operation on this rank
  int32_t coordinate = 0;              // of this rank on attributes->axis
  int32_t micro_batch = 0;             // load_batch: which of StepInputs::micro_batches
  const BucketTable* table = nullptr;  // bucket operations
  const void* prepared = nullptr;      // what Kernel::prepare returned for this execution
};

// What is known only while the step runs.
struct KernelContext {
  ThreadTeam* team = nullptr;
  const StepInputs* step = nullptr;
};

struct Kernel {
  // Runs to completion on the calling thread and its team. Never allocates.
  void (*run)(const KernelArguments&, const KernelContext&) = nullptr;
  // Optional: makes primitives when the program is loaded; the views already hold their final addresses.
  std::shared_ptr<const void> (*prepare)(const KernelArguments&, int threads) = nullptr;
  // Optional: scratch bytes for these operand types with a team of `threads`; called when compiling.
  int64_t (*workspace_bytes)(const Attributes&, std::span<const OperandType> inputs,
                             std::span<const OperandType> outputs, int threads) = nullptr;
};

class KernelTable {
 public:
  // `dtype` is the operation's compute type: key_dtype() of its operands.
  void set(OperationKind kind, DType dtype, Kernel kernel) { entry(kind, dtype) = kernel; }
  const Kernel* find(OperationKind kind, DType dtype) const {
    const Kernel& kernel = const_cast<KernelTable*>(this)->entry(kind, dtype);
    return kernel.run != nullptr ? &kernel : nullptr;
  }

 private:
  Kernel& entry(OperationKind kind, DType dtype) {
    return kernels_[static_cast<size_t>(kind)][static_cast<size_t>(dtype)];
  }
  std::array<std::array<Kernel, dtype_count>, operation_kind_count> kernels_{};
};

// The type a kernel is looked up by: that of the first present floating-point input, else of the first
// present floating-point output, else of the first operand. Other operands may differ (fp32 statistics and
// gradients, a wider residual stream): each kernel says in its header which mixtures it takes.
DType key_dtype(std::span<const OperandType> inputs, std::span<const OperandType> outputs);

// Plain loops with double accumulation, every float type of every kind: the oracle (kernels/reference/).
void add_reference_kernels(KernelTable& table);
// The fast ones for x86-64 (kernels/cpu/): oneDNN products, Highway for the rest. Types: fp32, bf16, fp16.
void add_cpu_kernels(KernelTable& table);

}  // namespace athanor
