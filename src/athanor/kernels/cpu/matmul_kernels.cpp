// Entries of the kernel table for matrix products and bias gradients.
//
// Mixtures of types: every operand may be fp32, bf16 or fp16; dbias is fp32.
#include <memory>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/kernels/cpu/column_sum.h"
#include "athanor/kernels/cpu/cpu_kernels.h"
#include "athanor/kernels/cpu/matmul.h"
#include "athanor/kernels/cpu/vector_product.h"

namespace athanor {
namespace {

using Types = std::span<const OperandType>;
using cpu::ConstRows;
using cpu::ProductForm;
using cpu::ProductOperands;
using cpu::ProductPlan;
using cpu::ProductShape;
using cpu::Rows;

// Rows along the last dim. A token of a strided tensor is one row.
int64_t row_stride(const TensorView& view) {
  const int64_t length = view.shape.rank() == 0 ? 1 : view.shape[-1];
  if (view.shape.rank() < 3 || view.compact()) return length;
  ATHANOR_ASSERT(view.shape.elements_per_token() == length, "strided tokens of several rows");
  return view.token_stride;
}
ConstRows input_rows(const TensorView& view) {
  if (!view.present()) return {};
  return {view.data, view.dtype, row_stride(view)};
}
Rows output_rows(const TensorView& view) {
  if (!view.present()) return {};
  return {view.data, view.dtype, row_stride(view)};
}

template <ProductForm form>
ProductShape shape_of(const Shape& left, DType left_type, const Shape& right, DType right_type,
                      DType result_type) {
  ProductShape shape{form, left.rows(), 0, 0, left_type, right_type, result_type};
  if (form == ProductForm::forward) {
    shape.outputs = right[0];
    shape.inputs = right[1];
  } else {
    shape.outputs = left[-1];
    shape.inputs = right[-1];
  }
  return shape;
}

// The workspace was reserved for compact operands and whole chunks; if others need more, it is here.
struct Workspace {
  Workspace(std::span<std::byte> reserved, int64_t bytes) : bytes_(reserved) {
    const auto needed = static_cast<size_t>(bytes);
    if (needed <= reserved.size()) return;
    memory_.resize(needed + 64);
    void* start = memory_.data();
    size_t space = memory_.size();
    bytes_ = {static_cast<std::byte*>(std::align(64, needed, start, space)), needed};
  }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::vector<std::byte> memory_;
  std::span<std::byte> bytes_;
};

// What a run needs, made when the program is loaded.
struct Prepared {
  ProductPlan plan;
  Workspace workspace;
};

template <ProductForm form>
std::shared_ptr<const void> prepare(const KernelArguments& arguments, int threads) {
  const TensorView &left = arguments.inputs[0], &right = arguments.inputs[1];
  ProductShape shape =
      shape_of<form>(left.shape, left.dtype, right.shape, right.dtype, arguments.outputs[0].dtype);
  shape.left_stride = row_stride(left);
  shape.right_stride = row_stride(right);
  ProductPlan plan(shape, threads);
  Workspace workspace(arguments.workspace, plan.workspace_bytes());
  return std::make_shared<Prepared>(Prepared{std::move(plan), std::move(workspace)});
}

template <ProductForm form>
int64_t workspace_bytes(const Attributes&, Types inputs, Types outputs, int threads) {
  return ProductPlan(shape_of<form>(inputs[0].shape, inputs[0].dtype, inputs[1].shape, inputs[1].dtype,
                                    outputs[0].dtype),
                     threads)
      .workspace_bytes();
}

// Of a product that is cut in depth, the part that begins at 0 adds the bias.
cpu::ConstSpan bias_of(const KernelArguments& arguments) {
  const TensorView& bias = arguments.inputs[2];
  return {arguments.first == 0 ? bias.data : nullptr, bias.dtype};
}

template <ProductForm form>
void run(const KernelArguments& arguments, const KernelContext& context) {
  ProductOperands operands;
  operands.left = input_rows(arguments.inputs[0]);
  operands.right = input_rows(arguments.inputs[1]);
  operands.result = output_rows(arguments.outputs[0]);
  if (form == ProductForm::forward) {
    operands.bias = bias_of(arguments);
    operands.activated = output_rows(arguments.outputs[1]);
  } else if (form == ProductForm::input_gradient) {
    operands.addend = input_rows(arguments.inputs[2]);
  } else {
    operands.accumulate = arguments.accumulate;
  }
  const auto& prepared = *static_cast<const Prepared*>(arguments.prepared);
  prepared.plan.run(*context.team, operands, prepared.workspace.bytes());
}

void run_bias_gradient(const KernelArguments& arguments, const KernelContext& context) {
  const TensorView &dy = arguments.inputs[0], &dbias = arguments.outputs[0];
  ATHANOR_ASSERT(dbias.dtype == DType::fp32, "a bias gradient of type {}", name_of(dbias.dtype));
  cpu::column_sum(*context.team, dy.shape.rows(), dy.shape[-1], input_rows(dy), dbias.as<float>(),
                  arguments.accumulate, arguments.workspace.data());
}

int64_t bias_gradient_workspace_bytes(const Attributes&, Types inputs, Types, int) {
  return cpu::column_sum_workspace_bytes(inputs[0].shape.rows(), inputs[0].shape[-1]);
}

// Programs that continue sequences by a token each have [B,1,K]: always the kernel for vectors, whatever B,
// so that a sequence's bits do not depend on how many others there are.
bool is_vector_product(const Shape& x) {
  return x.rank() == 3 && x[1] == 1;
}

int64_t vector_bytes(const Shape& x, const Shape& weight, DType weight_type, int threads) {
  return cpu::vector_product_workspace_bytes(x.rows(), weight[0], weight[1], weight_type, threads);
}

std::shared_ptr<const void> prepare_forward(const KernelArguments& arguments, int threads) {
  const TensorView &x = arguments.inputs[0], &weight = arguments.inputs[1];
  if (!is_vector_product(x.shape)) return prepare<ProductForm::forward>(arguments, threads);
  return std::make_shared<Workspace>(arguments.workspace,
                                     vector_bytes(x.shape, weight.shape, weight.dtype, threads));
}

int64_t forward_workspace_bytes(const Attributes& attributes, Types inputs, Types outputs, int threads) {
  const Shape& x = inputs[0].shape;
  return is_vector_product(x) ? vector_bytes(x, inputs[1].shape, inputs[1].dtype, threads)
                              : workspace_bytes<ProductForm::forward>(attributes, inputs, outputs, threads);
}

void run_forward(const KernelArguments& arguments, const KernelContext& context) {
  const TensorView &x = arguments.inputs[0], &weight = arguments.inputs[1];
  if (!is_vector_product(x.shape)) return run<ProductForm::forward>(arguments, context);
  cpu::vector_product(*context.team,
                      {.tokens = x.shape.rows(),
                       .outputs = weight.shape[0],
                       .inputs = weight.shape[1],
                       .x = input_rows(x),
                       .weight = input_rows(weight),
                       .bias = bias_of(arguments),
                       .y = output_rows(arguments.outputs[0]),
                       .activated = output_rows(arguments.outputs[1])},
                      static_cast<const Workspace*>(arguments.prepared)->bytes().data());
}

template <ProductForm form>
void add(KernelTable& table, OperationKind kind) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    table.set(kind, dtype,
              {.run = run<form>, .prepare = prepare<form>, .workspace_bytes = workspace_bytes<form>});
}

}  // namespace

void add_cpu_matmul_kernels(KernelTable& table) {
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    table.set(OperationKind::matmul, dtype,
              {.run = run_forward, .prepare = prepare_forward, .workspace_bytes = forward_workspace_bytes});
  add<ProductForm::input_gradient>(table, OperationKind::matmul_input_gradient);
  add<ProductForm::weight_gradient>(table, OperationKind::matmul_weight_gradient);
  for (const DType dtype : {DType::fp32, DType::bf16, DType::fp16})
    table.set(
        OperationKind::bias_gradient, dtype,
        {.run = run_bias_gradient, .prepare = nullptr, .workspace_bytes = bias_gradient_workspace_bytes});
}

}  // namespace athanor
