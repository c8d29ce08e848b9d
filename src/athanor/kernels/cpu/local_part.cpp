// A rank's part of a tensor that all ranks of an axis hold: copies of runs, of any type.
#include <vector>

#include "athanor/kernels/cpu/adapters.h"
#include "athanor/kernels/tensor_elements.h"

namespace athanor::cpu {

namespace {

// What this rank stores of the cut dim, and how the copy is cut into tiles.
struct LocalPart {
  std::vector<Range> stored;
  int64_t outer = 1, inner = 1;   // elements of the dims before and after the cut one
  int64_t whole = 0, length = 0;  // of the cut dim, in x and in y
  int64_t piece = 1, pieces = 1;  // of `length`: its elements in one piece, and their number
  int64_t pieces_per_tile = 1;
};

std::shared_ptr<const void> prepare(const KernelArguments& a, int) {
  const Attributes& attributes = *a.attributes;
  const Shape& x = a.inputs[0].shape;
  const int dim = attributes.to.dim;
  Coordinates at{};
  at[static_cast<size_t>(attributes.axis)] = a.coordinate;
  LocalPart part;
  part.stored = stored_ranges(x, placements_of(attributes.axis, attributes.to),
                              mesh_of(attributes.axis, attributes.ranks), at)[static_cast<size_t>(dim)];
  for (int d = 0; d < dim; ++d) part.outer *= x[d];
  for (int d = dim + 1; d < x.rank(); ++d) part.inner *= x[d];
  part.whole = x[dim];
  part.length = a.outputs[0].shape[dim];
  part.piece = std::max<int64_t>(1, std::min(part.length, tile_elements / std::max<int64_t>(1, part.inner)));
  part.pieces = ceil_divide(part.length, part.piece);
  part.pieces_per_tile =
      std::max<int64_t>(1, tile_elements / (part.piece * std::max<int64_t>(1, part.inner)));
  return std::make_shared<const LocalPart>(std::move(part));
}

void run_local_part(const KernelArguments& a, const KernelContext& context) {
  const auto& part = *static_cast<const LocalPart*>(a.prepared);
  const TensorElements from(a.inputs[0]), to(a.outputs[0]);
  if (a.outputs[0].shape.elements() == 0) return;
  const int64_t pieces = part.outer * part.pieces;
  const auto copy_piece = [&](int64_t index) {
    const int64_t outer = index / part.pieces;
    const int64_t begin = index % part.pieces * part.piece, end = std::min(part.length, begin + part.piece);
    int64_t stored = 0;  // elements of the dim in earlier runs
    for (const Range& run : part.stored) {
      const int64_t first = std::max(begin, stored), last = std::min(end, stored + run.end - run.begin);
      if (first < last) {
        // What lies beyond the whole is padding.
        const int64_t source = run.begin + first - stored;
        const int64_t count = std::clamp<int64_t>(part.whole - source, 0, last - first);
        const int64_t target = (outer * part.length + first) * part.inner;
        copy_elements(from, (outer * part.whole + source) * part.inner, to, target, count * part.inner);
        zero_elements(to, target + count * part.inner, (last - first - count) * part.inner);
      }
      stored += run.end - run.begin;
    }
  };
  context.team->parallel_for(ceil_divide(pieces, part.pieces_per_tile), [&](int64_t tile, int) {
    const int64_t last = std::min(pieces, (tile + 1) * part.pieces_per_tile);
    for (int64_t index = tile * part.pieces_per_tile; index < last; ++index) copy_piece(index);
  });
}

}  // namespace

void add_local_part_kernels(KernelTable& table) {
  for (int i = 0; i < dtype_count; ++i) {
    const auto dtype = static_cast<DType>(i);
    const bool known = is_float(dtype) || dtype == DType::int32 || dtype == DType::int64;
    if (known) table.set(OperationKind::local_part, dtype, {.run = run_local_part, .prepare = prepare});
  }
}

}  // namespace athanor::cpu
