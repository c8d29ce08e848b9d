#include <gtest/gtest.h>

#include <set>

#include "athanor/base/error.h"
#include "athanor/compile/compile.h"

namespace athanor {
namespace {

Backend backend_with(std::set<DType> products) {
  return {"this device",
          [products](OperationKind kind, DType dtype) {
            return kind != OperationKind::matmul || products.contains(dtype);
          },
          [](const Operation&, std::span<const OperandType>, std::span<const OperandType>) -> int64_t {
            return 0;
          }};
}

ProgramSet compiled(Precision precision, DType residual, std::set<DType> products) {
  ModelConfig config = family_defaults("llama");
  config.layers = 2;
  config.width = 16;
  config.heads = 4;
  config.feed_forward = 24;
  config.vocabulary = 37;
  config.maximum_positions = 8;
  config.dropout = 0.1;
  CompileOptions options;
  options.precision = precision;
  options.residual = residual;
  const ProgramRequest request{ProgramKind::train, 2, 2, 8};
  return compile(config, {&request, 1}, options, backend_with(std::move(products)));
}

bool is_product(OperationKind kind) {
  return kind == OperationKind::matmul || kind == OperationKind::matmul_input_gradient ||
         kind == OperationKind::matmul_weight_gradient;
}

// Gradients of weights, what they are summed in and what is updated by them are fp32; products, activations
// and working weights are narrow.
TEST(Precision, NarrowComputeKeepsSumsWide_P34_InEveryTemplate) {
  for (const Precision precision : {Precision::bf16, Precision::fp16}) {
    const DType narrow = precision == Precision::bf16 ? DType::bf16 : DType::fp16;
    for (const DType residual : {DType::fp32, narrow}) {
      const ProgramSet set = compiled(precision, residual, {DType::fp32, DType::bf16, DType::fp16});
      EXPECT_TRUE(set.notes.empty());
      std::set<Role> seen;
      for (const Template& block : set.programs.front().templates) {
        for (const Value& value : block.graph.values) {
          seen.insert(value.role);
          switch (value.role) {
            case Role::parameter_gradient:
            case Role::bucket_gradient:
            case Role::master:
            case Role::optimizer_state:
            case Role::statistic:
              EXPECT_EQ(value.dtype, DType::fp32) << block.name << " " << value.name;
              break;
            case Role::residual:
            case Role::residual_gradient:
              EXPECT_EQ(value.dtype, residual) << block.name << " " << value.name;
              break;
            case Role::parameter:
            case Role::working:
            case Role::activation_gradient:
              EXPECT_EQ(value.dtype, narrow) << block.name << " " << value.name;
              break;
            default:
              break;
          }
        }
        for (const Operation& operation : block.graph.operations) {
          if (is_product(operation.kind)) {
            EXPECT_EQ(block.graph.value(operation.inputs[0]).dtype, narrow) << block.name;
            EXPECT_EQ(block.graph.value(operation.inputs[1]).dtype, narrow) << block.name;
          }
          if (operation.kind == OperationKind::cross_entropy) {
            EXPECT_EQ(block.graph.value(operation.inputs[0]).dtype, DType::fp32) << "logits";
          }
        }
      }
      for (const Role role : {Role::parameter_gradient, Role::bucket_gradient, Role::master,
                              Role::optimizer_state, Role::statistic, Role::residual_gradient, Role::working})
        EXPECT_TRUE(seen.contains(role)) << name_of(role);
    }
  }
}

TEST(Precision, ATypeWithoutProductsFallsBackAndSaysSo) {
  const auto note_of = [](Precision precision, std::set<DType> products) {
    const ProgramSet set = compiled(precision, DType::fp32, std::move(products));
    std::set<DType> types;
    for (const Template& block : set.programs.front().templates) {
      for (const Operation& operation : block.graph.operations) {
        if (is_product(operation.kind)) types.insert(block.graph.value(operation.outputs[0]).dtype);
      }
    }
    EXPECT_EQ(types.size(), 1U);
    return std::string(name_of(*types.begin())) + (set.notes.empty() ? "" : "; " + set.notes.front());
  };
  EXPECT_EQ(note_of(Precision::fp32, {DType::fp32}), "fp32");
  EXPECT_EQ(note_of(Precision::bf16, {DType::fp32, DType::fp64}),
            "fp32; precision: this device has no bf16 products; the model runs in fp32");
  EXPECT_EQ(note_of(Precision::fp64, {DType::fp32, DType::bf16}),
            "fp32; precision: this device has no fp64 products; the model runs in fp32");
  EXPECT_EQ(note_of(Precision::fp16, {DType::fp64}),
            "fp64; precision: this device has no fp16 products; the model runs in fp64");
  try {
    note_of(Precision::fp32, {DType::bf16});
    FAIL() << "compiled without products";
  } catch (const Error& error) {
    EXPECT_EQ(error.message(), "this device has no products in fp32, fp32 or fp64");
  }
}

}  // namespace
}  // namespace athanor
