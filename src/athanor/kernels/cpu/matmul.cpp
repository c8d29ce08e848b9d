#include "athanor/kernels/cpu/matmul.h"

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/matmul_tile.h"

namespace athanor::cpu {
namespace {

int64_t align_bytes(int64_t bytes) {
  return ceil_divide(bytes, 64) * 64;
}

void check_type(DType dtype) {
  if (dtype != DType::fp32 && dtype != DType::bf16 && dtype != DType::fp16) unsupported_type(dtype);
}

}  // namespace

ProductPlan::ProductPlan(const ProductShape& shape, int threads)
    : shape_(shape), grid_(tile_grid(shape.rows(), shape.columns(), shape.depth())), threads_(threads) {
  check_type(shape.left);
  check_type(shape.right);
  check_type(shape.result);
  const int64_t rows = grid_.rows.longest(), columns = grid_.columns.longest();
  scratch_bytes_ = align_bytes(tile_product_scratch_bytes(columns));
  // Sums of a narrower result are gathered in fp32 first.
  const int64_t sums = shape.result == DType::fp32 ? 0 : rows * columns * static_cast<int64_t>(sizeof(float));
  thread_bytes_ = scratch_bytes_ + align_bytes(sums);
}

void ProductPlan::run(ThreadTeam& team, const ProductOperands& operands,
                      std::span<std::byte> workspace) const {
  ATHANOR_ASSERT(team.size() <= threads_ && static_cast<int64_t>(workspace.size()) >= workspace_bytes(),
                 "{} threads of {}, {} bytes of {}", team.size(), threads_, workspace.size(),
                 workspace_bytes());
  if (shape_.rows() == 0 || shape_.columns() == 0) return;
  const ProductOperand a{operands.left.data, operands.left.dtype, operands.left.stride,
                         shape_.form != ProductForm::weight_gradient};
  const ProductOperand b{operands.right.data, operands.right.dtype, operands.right.stride,
                         shape_.form == ProductForm::forward};
  const Rows result = operands.result;
  const bool direct = result.dtype == DType::fp32;  // sums are gathered where they go
  // What is in the result already is an addend, unless the sums themselves begin with it.
  const bool adds_result = operands.accumulate || operands.addend.data == result.data;
  ATHANOR_ASSERT(!operands.accumulate || !operands.addend.present() || operands.addend.data == result.data);
  ConstRows addend = operands.addend;
  if (adds_result) addend = direct ? ConstRows{} : ConstRows(result);
  const bool has_rest =
      !direct || operands.bias.data != nullptr || addend.present() || operands.activated.present();

  team.parallel_for(grid_.tiles(), [&](int64_t tile, int thread) {
    const int64_t row_part = tile % grid_.rows.parts, column_part = tile / grid_.rows.parts;
    const int64_t row = grid_.rows.begin(row_part), rows = grid_.rows.end(row_part) - row;
    const int64_t column = grid_.columns.begin(column_part);
    const int64_t columns = grid_.columns.end(column_part) - column;
    if (rows == 0 || columns == 0) return;
    std::byte* const scratch = workspace.data() + thread * thread_bytes_;
    const Span corner = result.at(row, column);
    float* const sums = reinterpret_cast<float*>(direct ? corner.data : scratch + scratch_bytes_);
    const int64_t stride = direct ? result.stride : columns;
    tile_product(a.from(row), b.from(column), rows, columns, shape_.depth(), sums, stride,
                 direct && adds_result, scratch);
    if (!has_rest) return;
    const auto at = [&](ConstRows whole) {
      return whole.present() ? ConstRows{whole.at(row, column).data, whole.dtype, whole.stride} : whole;
    };
    const auto to = [&](Rows whole) {
      return whole.present() ? Rows{whole.at(row, column).data, whole.dtype, whole.stride} : whole;
    };
    const ConstRows bias = at({operands.bias.data, operands.bias.dtype, 0});  // the same for every row
    finish_tile(rows, columns, sums, stride, {bias.data, bias.dtype}, at(addend),
                direct ? Rows{} : to(result), to(operands.activated));
  });
}

}  // namespace athanor::cpu
