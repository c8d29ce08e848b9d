// A rank's part of a tensor that all ranks of an axis hold.
#include <cstring>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// y = the elements of x that the placement `to` gives to this rank, zeros where it is padded.
void local_part(const KernelArguments& a, const KernelContext&) {
  const TensorView &x = a.inputs[0], &y = a.outputs[0];
  const Attributes& attributes = *a.attributes;
  const int dim = attributes.to.dim;
  const auto size = static_cast<int64_t>(size_of(x.dtype));
  Coordinates at{};
  at[static_cast<size_t>(attributes.axis)] = a.coordinate;
  const auto stored = stored_ranges(x.shape, placements_of(attributes.axis, attributes.to),
                                    mesh_of(attributes.axis, attributes.ranks), at)[static_cast<size_t>(dim)];
  // Where the element of a compact index lies: rows of tokens may stand apart.
  const auto place = [size](const TensorView& tensor, int64_t index) {
    if (tensor.shape.rank() < 2 || tensor.compact()) return tensor.data + index * size;
    const int64_t row = tensor.shape.elements_per_token();
    return tensor.data + (index / row * tensor.token_stride + index % row) * size;
  };
  int64_t inner = 1, outer = 1;
  for (int d = 0; d < dim; ++d) outer *= x.shape[d];
  for (int d = dim + 1; d < x.shape.rank(); ++d) inner *= x.shape[d];
  for (int64_t o = 0; o < outer; ++o) {
    int64_t next = o * y.shape[dim];
    for (const Range& range : stored) {
      for (int64_t i = range.begin; i < range.end; ++i, ++next) {
        for (int64_t e = 0; e < inner; ++e) {
          std::byte* target = place(y, next * inner + e);
          if (i < x.shape[dim]) {
            std::memcpy(target, place(x, (o * x.shape[dim] + i) * inner + e), static_cast<size_t>(size));
          } else {
            std::memset(target, 0, static_cast<size_t>(size));
          }
        }
      }
    }
  }
}

}  // namespace

void add_local_part(KernelTable& table) {
  set_all(table, OperationKind::local_part, {.run = local_part});
  for (const DType dtype : {DType::int32, DType::int64}) {
    table.set(OperationKind::local_part, dtype, {.run = local_part});
  }
}

}  // namespace athanor::reference
