#include "athanor/kernels/cpu/matmul.h"

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/matmul_bf16.h"
#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {
namespace {

// Columns that are multiplied and finished at a time: a block of them, of the rows of A and of the sums fit
// in the second cache together.
constexpr int64_t panel_columns = 4 * column_unit;
// A slab of this size stays in the second cache by itself.
constexpr int64_t near_bytes = 512 * 1024;
// Rows of a panel that are finished at a time.
constexpr int64_t finished_rows = 2 * row_unit;
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

// The share of `count` rows from `first` on, of all `rows`.
std::span<const float> part_of(std::span<const float> run, int64_t first, int64_t count, int64_t rows) {
  const auto size = static_cast<int64_t>(run.size());
  const int64_t begin = size * first / rows, end = size * (first + count) / rows;
  return run.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
}

ProductOperand left_of(const ProductShape& shape) {
  const int64_t compact = shape.form == ProductForm::forward ? shape.inputs : shape.outputs;
  return {nullptr, shape.left, shape.left_stride > 0 ? shape.left_stride : compact,
          shape.form != ProductForm::weight_gradient};
}

ProductOperand right_of(const ProductShape& shape) {
  return {nullptr, shape.right, shape.right_stride > 0 ? shape.right_stride : shape.inputs,
          shape.form == ProductForm::forward};
}

// Rows of A are read in place if they can be, unless they lie across and are read often.
bool packs_rows(const ProductShape& shape) {
  constexpr int64_t often = 512;
  return shape.left != DType::fp32 || (shape.form == ProductForm::weight_gradient && shape.columns() > often);
}

// Columns of B are read in place where packing would not pay: where they stay in the second cache by
// themselves, or for few rows (it costs as much as some ten). The activations of a large weight gradient come
// from far away, and packing brings them near.
bool packs_columns(const ProductShape& shape) {
  constexpr int64_t few_rows = 256;
  if (shape.form == ProductForm::forward || shape.right != DType::fp32 || shape.columns() % 16 != 0)
    return true;
  return shape.columns() * shape.depth() * float_size > near_bytes &&
         (shape.form == ProductForm::weight_gradient || shape.rows() > few_rows);
}

}  // namespace

struct ProductPlan::Run {
  ProductOperand a, b;
  ProductOperands operands;
  const float* bias = nullptr;  // added with the last products
  ConstSpan finishing_bias;     // or by finish_tile: that of another type, or without products
  ConstRows addend;             // what finish_tile adds
  bool begins_with_result = false, has_rest = false;
  std::byte* workspace = nullptr;
};

ProductPlan::ProductPlan(const ProductShape& shape, int threads, Bf16Arithmetic arithmetic)
    : shape_(shape), threads_(threads) {
  check_type(shape.left);
  check_type(shape.right);
  check_type(shape.result);
  const bool both_bf16 = shape.left == DType::bf16 && shape.right == DType::bf16;
  const bool empty = shape.rows() == 0 || shape.columns() == 0 || shape.depth() == 0;
  if (both_bf16 && !empty &&
      (arithmetic == Bf16Arithmetic::instructions ||
       (arithmetic == Bf16Arithmetic::automatic && bf16_instructions_pay()))) {
    grid_ = whole_depth_grid(shape.rows(), shape.columns(), shape.depth());
    const EvenSplit columns = grid_.columns(0);
    bf16_ = std::make_unique<BFloat16Tiles>(left_of(shape), right_of(shape), grid_.rows, columns,
                                            shape.depth(), threads);
    rows_bytes_ = align_bytes(bf16_->scratch_bytes());
    thread_bytes_ = rows_bytes_ + align_bytes(grid_.rows.longest() * columns.longest() * float_size);
    workspace_bytes_ = threads * thread_bytes_;
  } else {
    plan_packed(threads);
  }
}

ProductPlan::~ProductPlan() = default;
ProductPlan::ProductPlan(ProductPlan&&) noexcept = default;

void ProductPlan::plan_packed(int threads) {
  grid_ = product_grid(shape_.rows(), shape_.columns(), shape_.depth(), direct());
  const int64_t depth = padded(grid_.depth_slabs.longest(), depth_block);
  const int64_t rows = padded(grid_.rows.longest(), row_unit);
  if (packs_columns(shape_))
    slab_bytes_ = align_bytes(padded(grid_.column_slabs.longest(), column_unit) * depth * float_size);
  const bool lasting_sums = !direct() && grid_.depth_slabs.parts > 1;
  sums_bytes_ = lasting_sums ? align_bytes(shape_.rows() * shape_.columns() * float_size) : 0;
  rows_bytes_ = packs_rows(shape_) ? align_bytes(rows * depth * float_size) : 0;
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
  run.a = left_of(shape_);
  run.b = right_of(shape_);
  ATHANOR_ASSERT(operands.left.stride == run.a.stride && operands.right.stride == run.b.stride);
  run.a.data = operands.left.data;
  run.b.data = operands.right.data;
  run.operands = operands;
  run.workspace = workspace.data();
  // What is in the result already is an addend, unless the sums themselves can begin with it.
  const bool adds_result = operands.accumulate || operands.addend.data == operands.result.data;
  ATHANOR_ASSERT(!operands.accumulate || !operands.addend.present() || adds_result);
  run.begins_with_result = adds_result && direct();
  run.addend = operands.addend;
  if (adds_result) run.addend = direct() ? ConstRows{} : ConstRows(operands.result);
  if (bf16_ == nullptr && operands.bias.dtype == DType::fp32 && shape_.depth() > 0)
    run.bias = reinterpret_cast<const float*>(operands.bias.data);
  else
    run.finishing_bias = operands.bias;
  run.has_rest =
      !direct() || run.finishing_bias.data != nullptr || run.addend.present() || operands.activated.present();

  if (bf16_ != nullptr) {
    team.parallel_for(grid_.tiles(), [&](int64_t tile, int thread) { run_bf16_tile(run, tile, thread); });
    return;
  }
  for (int64_t column_slab = 0; column_slab < grid_.column_slabs.parts; ++column_slab) {
    for (int64_t depth_slab = 0; depth_slab < grid_.depth_slabs.parts; ++depth_slab) {
      if (slab_bytes_ > 0) pack_slab(team, run, column_slab, depth_slab);
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
  // Small enough that no thread waits long for the last piece of a small slab.
  const int64_t piece_columns = slab_bytes_ > near_bytes ? panel_columns : column_unit;
  const int64_t pieces = ceil_divide(columns, piece_columns), blocks = ceil_divide(depth, depth_block);
  auto* const slab = reinterpret_cast<float*>(run.workspace);
  team.parallel_for(pieces * blocks, [&](int64_t task, int) {
    const int64_t column = task % pieces * piece_columns, k = task / pieces * depth_block;
    float* const to = slab + k * padded(columns, column_unit) + column * depth_block;
    pack_columns(run.b, first + column, std::min(piece_columns, columns - column), first_k + k,
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
  if (packs_rows(shape_)) {
    for (int64_t k = 0; k < depth; k += depth_block)
      pack_rows(run.a, row, rows, first_k + k, std::min(depth_block, depth - k), packed_rows + k * tile_rows);
  }
  const auto block_of = [&](int64_t first, int64_t k) {
    if (!packs_rows(shape_))
      return RowBlock{reinterpret_cast<const float*>(run.a.at(row + first, first_k + k)), run.a.stride, true,
                      !run.a.depth_contiguous};
    return RowBlock{packed_rows + k * tile_rows + first * depth_block, 0, false, !run.a.depth_contiguous};
  };

  for (int64_t column = split.begin(column_part); column < split.end(column_part); column += panel_columns) {
    const int64_t columns = std::min(panel_columns, split.end(column_part) - column);
    float* sums = reinterpret_cast<float*>(scratch + rows_bytes_);
    int64_t stride = columns;
    if (direct()) {
      sums = reinterpret_cast<float*>(run.operands.result.at(row, slab_column + column).data);
      stride = run.operands.result.stride;
    } else if (sums_bytes_ > 0) {
      stride = shape_.columns();
      sums = reinterpret_cast<float*>(run.workspace + slab_bytes_) + row * stride + slab_column + column;
    }
    const bool begins = depth_slab == 0 && !run.begins_with_result;
    if (depth == 0) {
      for (int64_t i = 0; begins && i < rows; ++i) std::fill_n(sums + i * stride, columns, 0.0F);
      if (run.has_rest) finish(run, row, slab_column + column, rows, columns, sums, stride);
    }
    for (int64_t k = 0; k < depth; k += depth_block) {
      const ColumnBlock b =
          slab_bytes_ == 0
              ? ColumnBlock{reinterpret_cast<const float*>(run.b.at(slab_column + column, first_k + k)),
                            run.b.stride, true}
              : ColumnBlock{slab + k * slab_columns + column * depth_block};
      // Next come the block below, then the top of the next panel.
      std::span<const float> next;
      if (slab_bytes_ > near_bytes) {
        const float* from = k + depth_block < depth ? b.data + slab_columns * depth_block
                            : column + panel_columns < split.end(column_part)
                                ? slab + (column + panel_columns) * depth_block
                                : slab + split.begin(column_part) * depth_block;
        next = {from, static_cast<size_t>(columns * depth_block)};
      }
      BlockSums block{sums, stride, !begins || k > 0};
      const bool last_block = last && k + depth_block >= depth;
      if (last_block && run.bias != nullptr) block.bias = run.bias + slab_column + column;
      // The last sums are finished a few rows at a time, while they are in the first cache.
      const int64_t step = last_block && run.has_rest ? finished_rows : rows;
      for (int64_t first = 0; first < rows; first += step) {
        const int64_t count = std::min(step, rows - first);
        multiply_block(block_of(first, k), b, count, columns, std::min(depth_block, depth - k), block,
                       part_of(next, first, count, rows));
        if (last_block && run.has_rest)
          finish(run, row + first, slab_column + column, count, columns, block.data, stride);
        block.data += count * stride;
      }
    }
  }
}

void ProductPlan::run_bf16_tile(const Run& run, int64_t tile, int thread) const {
  const int64_t row_part = tile % grid_.rows.parts, column_part = tile / grid_.rows.parts;
  const EvenSplit split = grid_.columns(0);
  const int64_t row = grid_.rows.begin(row_part), column = split.begin(column_part);
  const int64_t rows = grid_.rows.end(row_part) - row, columns = split.end(column_part) - column;
  std::byte* const scratch = run.workspace + thread * thread_bytes_;
  auto* const sums = reinterpret_cast<float*>(scratch + rows_bytes_);
  bf16_->multiply(run.a, run.b, row_part, column_part, sums, scratch, thread);
  finish(run, row, column, rows, columns, sums, columns);
}

void ProductPlan::finish(const Run& run, int64_t row, int64_t column, int64_t rows, int64_t columns,
                         float* sums, int64_t sums_stride) const {
  const ConstRows bias = from({run.finishing_bias.data, run.finishing_bias.dtype, 0}, row, column);
  finish_tile(rows, columns, sums, sums_stride, {bias.data, bias.dtype}, from(run.addend, row, column),
              direct() ? Rows{} : from(run.operands.result, row, column),
              from(run.operands.activated, row, column));
}

}  // namespace athanor::cpu
