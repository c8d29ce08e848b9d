// Layout invariance of engines: the losses, gradient norms and weights of a run on several ranks are those of
// one rank.

#include <gtest/gtest.h>

#include <cmath>

#include "athanor/base/error.h"
#include "support/rank_engines.h"

namespace athanor {
namespace {

ModelConfig tiny(const std::string& family) {
  ModelConfig config = family_defaults(family);
  config.layers = 2;
  config.width = 7;
  config.heads = 4;
  config.key_value_heads = 2;
  config.head_dim = 4;
  config.feed_forward = 10;
  config.vocabulary = 23;
  config.maximum_positions = 16;
  config.dropout = 0.1;
  config.label_smoothing = 0.1;
  config.window = 5;
  config.query_key_norm = family == "llama";
  return config;
}

RunPlan plan_of(const std::string& family, Precision precision) {
  RunPlan plan;
  plan.engine.model = tiny(family);
  plan.engine.kernels = KernelSet::reference;
  plan.engine.seed = 5;
  plan.engine.compile.precision = precision;
  plan.engine.compile.optimizer.maximum_norm = 0.5;
  return plan;
}

struct LayoutCase {
  int32_t replica = 1, shard = 1, context = 1, tensor = 1;
  int32_t zero_stage = 0;
  bool sequence_parallel = false;
  ContextForm form = ContextForm::ring;
};

RunPlan with(RunPlan plan, const LayoutCase& layout) {
  LayoutOptions& options = plan.engine.compile.layout;
  options.mesh.sizes[static_cast<size_t>(Axis::replica)] = layout.replica;
  options.mesh.sizes[static_cast<size_t>(Axis::shard)] = layout.shard;
  options.mesh.sizes[static_cast<size_t>(Axis::context)] = layout.context;
  options.mesh.sizes[static_cast<size_t>(Axis::tensor)] = layout.tensor;
  options.sequence_parallel = layout.sequence_parallel;
  options.context_form = layout.form;
  plan.engine.compile.zero_stage = layout.zero_stage;
  return plan;
}

double largest_difference(const Tensors& expected, const Tensors& actual) {
  double largest = 0, difference = 0;
  for (const auto& [name, whole] : expected) {
    // The gradient of a key bias is zero but for rounding, which the optimizer amplifies.
    if (name.ends_with("key.bias")) continue;
    const auto& other = actual.at(name);
    for (size_t i = 0; i < whole.size(); ++i) {
      largest = std::max(largest, std::abs(whole[i]));
      const double error = std::abs(whole[i] - other[i]);
      difference = std::isnan(error) ? INFINITY : std::max(difference, error);
    }
  }
  return difference / largest;
}

void expect_same(const RankRun& expected, const RankRun& actual, double tolerance) {
  ASSERT_EQ(expected.steps.size(), actual.steps.size());
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const StepResult &a = expected.steps[i], &b = actual.steps[i];
    EXPECT_EQ(a.valid_tokens, b.valid_tokens);
    EXPECT_NEAR(a.loss, b.loss, tolerance * a.loss) << "step " << i;
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, tolerance * a.gradient_norm) << "step " << i;
  }
  EXPECT_NEAR(expected.validation[0], actual.validation[0], tolerance * expected.validation[0]);
  EXPECT_LE(largest_difference(expected.weights, actual.weights), tolerance);
}

class Layouts : public testing::TestWithParam<LayoutCase> {};

TEST_P(Layouts, GiveTheNumbersOfOneRank) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    const RunPlan plan = plan_of(family, Precision::fp64);
    expect_same(run_ranks(plan), run_ranks(with(plan, GetParam())), 1e-12);
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Layouts,
    testing::Values(LayoutCase{.replica = 2}, LayoutCase{.shard = 2}, LayoutCase{.shard = 2, .zero_stage = 1},
                    LayoutCase{.shard = 2, .zero_stage = 2}, LayoutCase{.shard = 2, .zero_stage = 3},
                    LayoutCase{.tensor = 2}, LayoutCase{.tensor = 3, .sequence_parallel = true},
                    LayoutCase{.context = 2}, LayoutCase{.context = 2, .form = ContextForm::all_to_all},
                    LayoutCase{.replica = 2, .shard = 2, .zero_stage = 1},
                    LayoutCase{.shard = 2, .tensor = 2, .zero_stage = 3, .sequence_parallel = true},
                    LayoutCase{.shard = 2, .context = 2, .tensor = 2, .zero_stage = 2}));

}  // namespace
}  // namespace athanor
