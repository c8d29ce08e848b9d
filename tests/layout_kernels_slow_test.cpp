// Layout invariance of the kernels that runs use, where their tiles matter: sizes above a tile in every dim
// and never a multiple of one, heads of 16 to 128, keys repeated among ranks, windows, a vocabulary of
// 50,257.

#include <gtest/gtest.h>

#include <cmath>

#include "support/layout_cases.h"

namespace athanor {
namespace {

struct Sizes {
  LayoutCase layout;
  int64_t width = 200, heads = 6, key_value_heads = 6, head_dim = 32, feed_forward = 555, vocabulary = 1003;
  int64_t sequence = 150, window = 0;
};

std::string to_text(const Sizes& sizes) {
  return fmt::format("{}; width {}, heads {}/{} of {}, features {}, vocabulary {}, sequence {}, window {}",
                     to_text(sizes.layout), sizes.width, sizes.heads, sizes.key_value_heads, sizes.head_dim,
                     sizes.feed_forward, sizes.vocabulary, sizes.sequence, sizes.window);
}

const std::vector<Sizes>& cases() {
  static const std::vector<Sizes> list = {
      {.layout = {.tensor = 3}, .head_dim = 40, .vocabulary = 50257},
      {.layout = {.shard = 3, .zero_stage = 3}, .head_dim = 80},
      {.layout = {.tensor = 3, .sequence_parallel = true, .family = "llama"},
       .key_value_heads = 3,
       .head_dim = 128,
       .sequence = 200},
      {.layout = {.tensor = 4, .family = "llama"},
       .heads = 8,
       .key_value_heads = 1,
       .head_dim = 64,
       .sequence = 130},
      {.layout = {.context = 3, .tensor = 2, .family = "llama"},
       .heads = 8,
       .key_value_heads = 2,
       .head_dim = 16,
       .sequence = 700,
       .window = 150},
      {.layout = {.context = 4}, .head_dim = 96, .sequence = 600},
      {.layout = {.context = 3, .form = ContextForm::all_to_all, .family = "llama"},
       .key_value_heads = 2,
       .head_dim = 48,
       .sequence = 500,
       .window = 77},
      {.layout = {.shard = 2, .context = 2, .tensor = 2, .zero_stage = 2, .sequence_parallel = true},
       .width = 77,
       .heads = 3,
       .key_value_heads = 3,
       .head_dim = 24,
       .feed_forward = 301,
       .sequence = 300},
  };
  return list;
}

RunPlan plan_of(const Sizes& sizes, Precision precision, KernelSet kernels = KernelSet::cpu) {
  LayoutCase layout = sizes.layout;
  layout.optimizer = OptimizerKind::sgd;  // updates are as good as the gradients
  layout.micro_batches = 1;
  RunPlan plan = plan_of(layout, precision, kernels);
  ModelConfig& model = plan.engine.model;
  model.layers = 1;
  model.width = sizes.width;
  model.heads = sizes.heads;
  model.key_value_heads = sizes.key_value_heads;
  model.head_dim = sizes.head_dim;
  model.feed_forward = sizes.feed_forward;
  model.vocabulary = sizes.vocabulary;
  model.window = sizes.window;
  model.maximum_positions = 1024;
  plan.samples = 2 * layout.replica * layout.shard;
  plan.sequence_length = sizes.sequence;
  plan.steps = 2;
  plan.learning_rate = 1;  // so that a change is far above the rounding of its weight
  return plan;
}

double norm_of_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (a[i] - b[i]) * (a[i] - b[i]);
  return std::sqrt(sum);
}

// Of each weight by itself, what the steps have changed, and the rounding of the weight: a part of a tensor
// that is wrong shows however small its gradient is beside others.
void expect_same_updates(const RunPlan& plan, const RankRun& expected, const RankRun& actual,
                         double tolerance) {
  RunPlan before = one_rank(plan);
  before.steps = 0;
  const RankRun initial = run_ranks(before);
  for (const auto& [name, values] : expected.weights) {
    if (name.ends_with("key.bias")) continue;  // its gradient is rounding alone
    const double update = norm_of_difference(values, initial.weights.at(name));
    const double size = norm_of_difference(values, std::vector<double>(values.size()));
    EXPECT_GT(update, 0) << name;
    EXPECT_LE(norm_of_difference(values, actual.weights.at(name)), tolerance * update + 0x1p-23 * size)
        << name << ", which has changed by " << update;
  }
}

// Relative to what the steps have changed.
double update_bound(Precision precision) {
  return precision == Precision::fp32 ? 1e-5 : precision == Precision::fp16 ? 1e-2 : 5e-2;
}

TEST(LayoutKernels, RanksGiveTheNumbersOfOneRank) {
  for (const Sizes& sizes : cases()) {
    for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
      SCOPED_TRACE(to_text(sizes) + ", " + name_of(precision, KernelSet::cpu));
      const RunPlan plan = plan_of(sizes, precision);
      const RankRun one = run_ranks(one_rank(plan)), many = run_ranks(plan);
      expect_same(one, many, bounds_of(precision));
      expect_same_updates(plan, one, many, update_bound(precision));
    }
  }
}

TEST(LayoutKernels, OneRankGivesTheNumbersOfTheReference) {
  for (Sizes sizes : cases()) {
    sizes.vocabulary = std::min<int64_t>(sizes.vocabulary, 1003);
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      SCOPED_TRACE(to_text(sizes) + ", " + name_of(precision, KernelSet::cpu));
      RunPlan plan = one_rank(plan_of(sizes, precision, KernelSet::reference));
      plan.samples = plan.steps = 1;
      const RankRun expected = run_ranks(plan);
      plan.engine.kernels = KernelSet::cpu;
      const RankRun actual = run_ranks(plan);
      expect_same(expected, actual, bounds_of(precision));
      expect_same_updates(plan, expected, actual, update_bound(precision));
    }
  }
}

TEST(LayoutKernels, ThreadsOfRanksChangeNoBit) {
  for (const Sizes& sizes : cases()) {
    SCOPED_TRACE(to_text(sizes));
    RunPlan plan = plan_of(sizes, Precision::bf16);
    plan.steps = 1;
    const RankRun one = run_ranks(plan);
    plan.threads = 3;
    expect_same_bits(one, run_ranks(plan));
  }
}

}  // namespace
}  // namespace athanor
