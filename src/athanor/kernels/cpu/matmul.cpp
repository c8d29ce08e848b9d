#include "athanor/kernels/cpu/matmul.h"

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {
namespace {

// Columns that are multiplied and finished at a time: a block of them, of the rows of A and of the sums fit
// in the second cache together.
constexpr int64_t panel_columns = 4 * column_unit;
constexpr auto float_size = static_cast<int64_t>(sizeof(float));

int64_t align_bytes(int64_t bytes) {
  return ceil_divide(bytes, 64) * 64;
}

int64_t padded(int64_t vectors, int64_t unit) {
  return ceil_divide(vectors, unit) * unit;
}

void check_type(DType dtype) {
  if (dtype != DType::fp32 && dtype != DType::bf16 && dtype != DType::fp16) unsupported_type(dtype);
}

ConstRows from(ConstRows whole, int64_t row, int64_t column) {
  return whole.present() ? ConstRows{whole.at(row, column).data, whole.dtype, whole.stride} : whole;
}

Rows from(Rows whole, int64_t row, int64_t column) {
  return whole.present() ? Rows{whole.at(row, column).data, whole.dtype, whole.stride} : whole;
}

}  // namespace

struct ProductPlan::Run {
  ProductOperand a, b;
  ProductOperands operands;
  ConstRows addend;  // what finish_tile adds
  bool begins_with_result = false, has_rest = false, packs_rows = false;
  std::byte* workspace = nullptr;
};

ProductPlan::ProductPlan(const ProductShape& shape, int threads)
    : shape_(shape),
      grid_(product_grid(shape.rows(), shape.columns(), shape.depth(), shape.result == DType::fp32)),
      threads_(threads) {
  check_type(shape.left);
  check_type(shape.right);
  check_type(shape.result);
  const int64_t depth = padded(grid_.depth_slabs.longest(), depth_block);
  const int64_t rows = padded(grid_.rows.longest(), row_unit);
  slab_bytes_ = align_bytes(padded(grid_.column_slabs.longest(), column_unit) * depth * float_size);
  const bool lasting_sums = !direct() && grid_.depth_slabs.parts > 1;
  sums_bytes_ = lasting_sums ? align_bytes(shape.rows() * shape.columns() * float_size) : 0;
  const bool packs_rows = shape.form == ProductForm::weight_gradient || shape.left != DType::fp32;
  rows_bytes_ = packs_rows ? align_bytes(rows * depth * float_size) : 0;
  const bool panel_sums = !direct() && !lasting_sums;
  thread_bytes_ = rows_bytes_ + (panel_sums ? align_bytes(rows * panel_columns * float_size) : 0);
  workspace_bytes_ = slab_bytes_ + sums_bytes_ + threads * thread_bytes_;
}

void ProductPlan::run(ThreadTeam& team, const ProductOperands& operands,
                      std::span<std::byte> workspace) const {
  ATHANOR_ASSERT(team.size() <= threads_ && static_cast<int64_t>(workspace.size()) >= workspace_bytes(),
                 "{} threads of {}, {} bytes of {}", team.size(), threads_, workspace.size(),
                 workspace_bytes());
  if (shape_.rows() == 0 || shape_.columns() == 0) return;
  Run run;
  const bool weight_gradient = shape_.form == ProductForm::weight_gradient;
  run.a = {operands.left.data, shape_.left, operands.left.stride, !weight_gradient};
  run.b = {operands.right.data, shape_.right, operands.right.stride, shape_.form == ProductForm::forward};
  run.operands = operands;
  run.packs_rows = weight_gradient || shape_.left != DType::fp32;
  run.workspace = workspace.data();
  // What is in the result already is an addend, unless the sums themselves can begin with it.
  const bool adds_result = operands.accumulate || operands.addend.data == operands.result.data;
  ATHANOR_ASSERT(!operands.accumulate || !operands.addend.present() || adds_result);
  run.begins_with_result = adds_result && direct();
  run.addend = operands.addend;
  if (adds_result) run.addend = direct() ? ConstRows{} : ConstRows(operands.result);
  run.has_rest =
      !direct() || operands.bias.data != nullptr || run.addend.present() || operands.activated.present();

  for (int64_t column_slab = 0; column_slab < grid_.column_slabs.parts; ++column_slab) {
    for (int64_t depth_slab = 0; depth_slab < grid_.depth_slabs.parts; ++depth_slab) {
      pack_slab(team, run, column_slab, depth_slab);
      team.parallel_for(grid_.tiles(), [&](int64_t tile, int thread) {
        run_tile(run, column_slab, depth_slab, tile, thread);
      });
    }
  }
}

void ProductPlan::pack_slab(ThreadTeam& team, const Run& run, int64_t column_slab, int64_t depth_slab) const {
  const int64_t first = grid_.column_slabs.begin(column_slab);
  const int64_t columns = grid_.column_slabs.end(column_slab) - first;
  const int64_t first_k = grid_.depth_slabs.begin(depth_slab);
  const int64_t depth = grid_.depth_slabs.end(depth_slab) - first_k;
  const int64_t pieces = ceil_divide(columns, panel_columns), blocks = ceil_divide(depth, depth_block);
  auto* const slab = reinterpret_cast<float*>(run.workspace);
  team.parallel_for(pieces * blocks, [&](int64_t task, int) {
    const int64_t column = task % pieces * panel_columns, k = task / pieces * depth_block;
    float* const to = slab + k * padded(columns, column_unit) + column * depth_block;
    pack_columns(run.b, first + column, std::min(panel_columns, columns - column), first_k + k,
                 std::min(depth_block, depth - k), to);
  });
}

void ProductPlan::run_tile(const Run& run, int64_t column_slab, int64_t depth_slab, int64_t tile,
                           int thread) const {
  const int64_t row_part = tile % grid_.rows.parts, column_part = tile / grid_.rows.parts;
  const EvenSplit split = grid_.columns(column_slab);
  if (column_part >= split.parts) return;  // the last slab may be narrower
  const int64_t row = grid_.rows.begin(row_part), rows = grid_.rows.end(row_part) - row;
  const int64_t slab_column = grid_.column_slabs.begin(column_slab);
  const int64_t slab_columns = padded(split.size, column_unit);
  const int64_t first_k = grid_.depth_slabs.begin(depth_slab);
  const int64_t depth = grid_.depth_slabs.end(depth_slab) - first_k;
  const int64_t tile_rows = padded(rows, row_unit);
  const bool last = depth_slab + 1 == grid_.depth_slabs.parts;

  const auto* const slab = reinterpret_cast<const float*>(run.workspace);
  std::byte* const scratch = run.workspace + slab_bytes_ + sums_bytes_ + thread * thread_bytes_;
  auto* const packed_rows = reinterpret_cast<float*>(scratch);
  if (run.packs_rows) {
    for (int64_t k = 0; k < depth; k += depth_block)
      pack_rows(run.a, row, rows, first_k + k, std::min(depth_block, depth - k), packed_rows + k * tile_rows);
  }
  const auto block_of = [&](int64_t k) {
    if (!run.packs_rows)
      return RowBlock{reinterpret_cast<const float*>(run.a.at(row, first_k + k)), run.a.stride, true, false};
    return RowBlock{packed_rows + k * tile_rows, 0, false, !run.a.depth_contiguous};
  };

  for (int64_t column = split.begin(column_part); column < split.end(column_part); column += panel_columns) {
    const int64_t columns = std::min(panel_columns, split.end(column_part) - column);
    const Span corner = run.operands.result.at(row, slab_column + column);
    float* sums = reinterpret_cast<float*>(scratch + rows_bytes_);
    int64_t stride = columns;
    if (direct()) {
      sums = reinterpret_cast<float*>(corner.data);
      stride = run.operands.result.stride;
    } else if (sums_bytes_ > 0) {
      stride = shape_.columns();
      sums = reinterpret_cast<float*>(run.workspace + slab_bytes_) + row * stride + slab_column + column;
    }
    const bool begins = depth_slab == 0 && !run.begins_with_result;
    if (depth == 0 && begins) {
      for (int64_t i = 0; i < rows; ++i) std::fill_n(sums + i * stride, columns, 0.0F);
    }
    for (int64_t k = 0; k < depth; k += depth_block) {
      const float* b = slab + k * slab_columns + column * depth_block;
      // Next come the block below, then the top of the next panel.
      const float* next = k + depth_block < depth ? b + slab_columns * depth_block
                          : column + panel_columns < split.end(column_part)
                              ? slab + (column + panel_columns) * depth_block
                              : slab + split.begin(column_part) * depth_block;
      multiply_block(block_of(k), b, rows, columns, std::min(depth_block, depth - k), sums, stride,
                     !begins || k > 0, next);
    }
    if (!last || !run.has_rest) continue;
    const ConstRows bias =
        from({run.operands.bias.data, run.operands.bias.dtype, 0}, row, slab_column + column);
    finish_tile(rows, columns, sums, stride, {bias.data, bias.dtype},
                from(run.addend, row, slab_column + column),
                direct() ? Rows{} : Rows{corner.data, shape_.result, run.operands.result.stride},
                from(run.operands.activated, row, slab_column + column));
  }
}

}  // namespace athanor::cpu
