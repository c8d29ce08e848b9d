// Copies a micro-batch of StepInputs into the program's tensors.
#include <cstring>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

template <class T>
void copy(const T* source, const TensorView& target) {
  if (!target.present() || target.shape.elements() == 0) return;
  ATHANOR_ASSERT(source != nullptr, "the step inputs lack a tensor that the program reads");
  ATHANOR_ASSERT(target.dtype == dtype_of<T>::value, "batch tensor of type {}", name_of(target.dtype));
  std::memcpy(target.data, source, static_cast<size_t>(target.shape.elements()) * sizeof(T));
}

void load_batch(const KernelArguments& a, const KernelContext& context) {
  const HostBatch& batch = context.step->micro_batches.at(static_cast<size_t>(a.micro_batch));
  copy(batch.token_ids, a.outputs[0]);
  copy(batch.labels, a.outputs[1]);
  copy(batch.positions, a.outputs[2]);
  copy(batch.documents, a.outputs[3]);
  copy(batch.indices, a.outputs[4]);
  copy(batch.sample_ids, a.outputs[5]);
}

void load_tokens(const KernelArguments& a, const KernelContext& context) {
  const HostBatch& batch = context.step->micro_batches.at(static_cast<size_t>(a.micro_batch));
  copy(batch.token_ids, a.outputs[0]);
  copy(batch.positions, a.outputs[1]);
  copy(batch.lengths, a.outputs[2]);
  copy(batch.cache_rows, a.outputs[3]);
}

}  // namespace

void add_batch(KernelTable& table) {
  table.set(OperationKind::load_batch, DType::int32, {.run = load_batch});
  table.set(OperationKind::load_tokens, DType::int32, {.run = load_tokens});
}

}  // namespace athanor::reference
