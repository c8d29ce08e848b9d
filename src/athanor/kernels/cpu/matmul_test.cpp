#include "athanor/kernels/cpu/matmul.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "athanor/kernels/cpu/matmul_bf16.h"
#include "athanor/kernels/cpu/test_support.h"

namespace athanor::cpu {
namespace {

using testing::Tensor;

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)));
}

struct Case {
  ProductShape shape;
  DType bias = DType::fp32, addend = DType::fp32;
  bool has_bias = false, has_addend = false, has_activated = false, accumulate = false, in_place = false;
  int64_t padding = 0;
  Bf16Arithmetic arithmetic = Bf16Arithmetic::automatic;
};

std::string describe(const Case& c) {
  const ProductShape& s = c.shape;
  return fmt::format("form {} M {} N {} K {} {} {} -> {}{}{}{}{}{} padding {}", static_cast<int>(s.form),
                     s.tokens, s.outputs, s.inputs, name_of(s.left), name_of(s.right), name_of(s.result),
                     c.has_bias ? " bias" : "", c.has_addend ? " addend" : "",
                     c.has_activated ? " activated" : "", c.accumulate ? " accumulate" : "",
                     c.in_place ? " in place" : "", c.padding);
}

// Runs on every instruction set and thread count; compares with sums in double.
void check(const Case& c) {
  SCOPED_TRACE(describe(c));
  ProductShape s = c.shape;
  const bool forward = s.form == ProductForm::forward;
  const bool weight_gradient = s.form == ProductForm::weight_gradient;
  Tensor left(s.left, s.tokens, forward ? s.inputs : s.outputs, c.padding);
  Tensor right(s.right, weight_gradient ? s.tokens : s.outputs, s.inputs, c.padding / 2);
  Tensor bias(c.bias, 1, s.columns());
  Tensor addend(c.addend, s.rows(), s.columns(), c.padding);
  Tensor before(s.result, s.rows(), s.columns(), c.padding);
  s.left_stride = left.stride;
  s.right_stride = right.stride;
  left.fill("left", -1, 1);
  right.fill("right", -1, 1);
  bias.fill("bias");
  addend.fill("addend");
  before.fill("before");

  // |sum - exact| is bounded through the sum of magnitudes.
  std::vector<double> exact, magnitude;
  for (int64_t i = 0; i < s.rows(); ++i) {
    for (int64_t j = 0; j < s.columns(); ++j) {
      double sum = 0, size = 0;
      for (int64_t k = 0; k < s.depth(); ++k) {
        const double a = weight_gradient ? left.get(k, i) : left.get(i, k);
        const double term = a * (forward ? right.get(j, k) : right.get(k, j));
        sum += term;
        size += std::abs(term);
      }
      const double rest = (c.has_bias ? bias.get(0, j) : 0) + (c.has_addend ? addend.get(i, j) : 0) +
                          (c.accumulate || c.in_place ? before.get(i, j) : 0);
      exact.push_back(sum + rest);
      magnitude.push_back(size + std::abs(rest));
    }
  }

  const auto run = [&](ThreadTeam& team) {
    Tensor result(s.result, s.rows(), s.columns(), c.padding);
    Tensor activated(s.result, s.rows(), s.columns(), c.padding / 3);
    if (c.accumulate || c.in_place) {
      for (int64_t i = 0; i < s.rows(); ++i) {
        for (int64_t j = 0; j < s.columns(); ++j) result.set(i, j, before.get(i, j));
      }
    }
    const ProductPlan plan(s, team.size(), c.arithmetic);
    std::vector<std::byte> memory(static_cast<size_t>(plan.workspace_bytes()) + 64);
    void* start = memory.data();
    size_t space = memory.size();
    std::align(64, static_cast<size_t>(plan.workspace_bytes()), start, space);
    ProductOperands operands;
    operands.left = left.view();
    operands.right = right.view();
    if (c.has_bias) operands.bias = {bias.bytes.data(), bias.dtype};
    if (c.has_addend) operands.addend = std::as_const(addend).view();
    operands.result = result.view();
    if (c.in_place) operands.addend = operands.result;
    if (c.has_activated) operands.activated = activated.view();
    operands.accumulate = c.accumulate;
    plan.run(team, operands, {static_cast<std::byte*>(start), static_cast<size_t>(plan.workspace_bytes())});
    std::vector<Tensor> outputs{result};
    if (c.has_activated) outputs.push_back(activated);
    return outputs;
  };
  testing::on_every_target(run, [&](const std::vector<Tensor>& outputs) {
    for (int64_t i = 0; i < s.rows(); ++i) {
      for (int64_t j = 0; j < s.columns(); ++j) {
        const auto at = static_cast<size_t>(i * s.columns() + j);
        const double sum_error = magnitude[at] * 1e-6 + 1e-30;
        const double error = sum_error + std::abs(exact[at]) * testing::rounding(s.result) * 1.01;
        ASSERT_NEAR(outputs[0].get(i, j), exact[at], error) << "row " << i << " column " << j;
        if (!c.has_activated) continue;
        const double want = gelu(outputs[0].get(i, j));  // of what is stored
        ASSERT_NEAR(outputs[1].get(i, j), want, 2e-6 + std::abs(want) * testing::rounding(s.result) * 1.01)
            << "activated, row " << i << " column " << j;
      }
    }
  });
}

constexpr ProductForm forms[] = {ProductForm::forward, ProductForm::input_gradient,
                                 ProductForm::weight_gradient};

TEST(Matmul, OddSizesInEveryForm) {
  for (const ProductForm form : forms) {
    for (const int64_t m : {1, 7, 33})
      for (const int64_t n : {1, 7, 33, 100})
        for (const int64_t k : {1, 7, 33}) check({.shape = {form, m, n, k}, .padding = (m + n + k) % 4 * 3});
  }
}

TEST(Matmul, ManyTilesAndBlocks) {
  for (const ProductForm form : forms) {
    check({.shape = {form, 263, 20, 270}, .padding = 5});
    check({.shape = {form, 12, 1601, 40}});
    check({.shape = {form, 1100, 20, 35}});
    // Operands that are read in place.
    check({.shape = {form, 70, 35, 112}, .padding = 2});
    check({.shape = {form, 270, 40, 64}, .accumulate = true, .padding = 6});
    check({.shape = {form, 12, 280, 528}});
    check({.shape = {form, 600, 35, 112}, .padding = 2});
    // Gradients whose columns could be read in place, and are too many.
    check({.shape = {form, 270, 400, 336}});
  }
}

TEST(Matmul, EveryType) {
  for (const ProductForm form : forms) {
    for (const DType left : testing::storage_types)
      for (const DType right : testing::storage_types)
        for (const DType result : testing::storage_types)
          check({.shape = {form, 19, 53, 37, left, right, result}, .padding = 7});
  }
}

TEST(Matmul, Accumulates) {
  for (const ProductForm form : forms) {
    for (const DType result : testing::storage_types)
      check(
          {.shape = {form, 20, 30, 300, DType::bf16, DType::bf16, result}, .accumulate = true, .padding = 3});
  }
}

// bf16 gradients of micro-batches add up in fp32: 1 + 256 * 2^-9 = 1.5, where a bf16 sum would stay at 1.
TEST(Matmul, Accumulation_P34_SmallAddendsCount) {
  const ProductShape shape{ProductForm::weight_gradient, 1, 20, 33, DType::bf16, DType::bf16, DType::fp32};
  Tensor dy(DType::bf16, 1, 20), x(DType::bf16, 1, 33);
  for (int64_t i = 0; i < 33; ++i) x.set(0, i, 1);
  testing::on_every_target(
      [&](ThreadTeam& team) {
        Tensor dweight(DType::fp32, 20, 33);
        const ProductPlan plan(shape, team.size());
        const auto scratch = testing::scratch_of(plan.workspace_bytes());
        ProductOperands operands;
        operands.left = dy.view();
        operands.right = x.view();
        operands.result = dweight.view();
        for (int step = 0; step <= 256; ++step) {
          for (int64_t i = 0; i < 20; ++i) dy.set(0, i, step == 0 ? 1 : 0x1p-9);
          operands.accumulate = step > 0;
          plan.run(team, operands, scratch);
        }
        return std::vector{dweight};
      },
      [](const std::vector<Tensor>& out) {
        for (int64_t i = 0; i < 20; ++i)
          for (int64_t j = 0; j < 33; ++j) ASSERT_EQ(out[0].get(i, j), 1.5);
      });
}

TEST(Matmul, BiasAndActivation) {
  for (const DType type : testing::storage_types) {
    for (const DType bias : testing::storage_types) {
      const ProductShape shape{ProductForm::forward, 10, 500, 20, type, type, type};
      check({.shape = shape, .bias = bias, .has_bias = true});
      check({.shape = shape, .bias = bias, .has_bias = true, .has_activated = true, .padding = 9});
    }
    check({.shape = {ProductForm::forward, 9, 70, 40, type, type, type}, .has_activated = true});
    // Finished in several pieces, after the last of several blocks.
    check({.shape = {ProductForm::forward, 45, 210, 300, type, type, type},
           .has_bias = true,
           .has_activated = true,
           .padding = 3});
  }
}

TEST(Matmul, Addend) {
  for (const DType type : testing::storage_types) {
    const ProductShape shape{ProductForm::input_gradient, 70, 40, 150, type, type, type};
    for (const DType addend : testing::storage_types)
      check({.shape = shape, .addend = addend, .has_addend = true, .padding = 2});
    check({.shape = shape, .in_place = true, .padding = 2});
  }
}

TEST(Matmul, Bf16Instructions) {
  if (!has_bf16_instructions()) GTEST_SKIP() << "this machine has none";
  const DType bf16 = DType::bf16, fp32 = DType::fp32;
  const auto by_instructions = Bf16Arithmetic::instructions;
  for (const ProductForm form : forms) {
    for (const int64_t m : {1, 7, 33})
      for (const int64_t n : {1, 33})
        for (const int64_t k : {1, 7, 100})
          check({.shape = {form, m, n, k, bf16, bf16, bf16},
                 .padding = m % 3 * 8,
                 .arithmetic = by_instructions});
    check({.shape = {form, 530, 20, 40, bf16, bf16, bf16}, .arithmetic = by_instructions});
    check(
        {.shape = {form, 10, 1601, 20, bf16, bf16, fp32}, .accumulate = true, .arithmetic = by_instructions});
  }
  check({.shape = {ProductForm::forward, 10, 1100, 20, bf16, bf16, bf16},
         .bias = bf16,
         .has_bias = true,
         .has_activated = true,
         .padding = 9,
         .arithmetic = by_instructions});
  check({.shape = {ProductForm::input_gradient, 70, 40, 150, bf16, bf16, bf16},
         .in_place = true,
         .arithmetic = by_instructions});
  const ProductPlan widened({ProductForm::forward, 5, 6, 7, bf16, bf16, bf16}, 1, Bf16Arithmetic::widened);
  EXPECT_FALSE(widened.uses_bf16_instructions());
  const ProductPlan instructions({ProductForm::forward, 5, 6, 7, bf16, bf16, bf16}, 1, by_instructions);
  EXPECT_TRUE(instructions.uses_bf16_instructions());
}

TEST(Matmul, VocabularyOfOddSize) {
  check({.shape = {ProductForm::forward, 2, 50257, 3}});
  check({.shape = {ProductForm::input_gradient, 2, 50257, 3, DType::bf16, DType::bf16, DType::bf16}});
  check({.shape = {ProductForm::weight_gradient, 2, 50257, 3, DType::bf16, DType::bf16, DType::fp32},
         .accumulate = true});
}

TEST(Matmul, EmptyDims) {
  for (const ProductForm form : forms) {
    check({.shape = {form, 0, 5, 7}});
    check({.shape = {form, 5, 0, 7}});
    check({.shape = {form, 5, 7, 0}});
    check({.shape = {form, 5, 7, 0, DType::bf16, DType::bf16, DType::bf16}, .has_addend = true});
  }
  check({.shape = {ProductForm::weight_gradient, 0, 5, 7}, .accumulate = true});
  check({.shape = {ProductForm::forward, 5, 7, 0}, .has_bias = true, .has_activated = true});
}

}  // namespace
}  // namespace athanor::cpu
