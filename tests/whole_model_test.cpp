// Losses, all gradients and ten optimizer steps of whole models against PyTorch in fp64.

#include <gtest/gtest.h>

#include "support/model_fixture.h"

namespace athanor {
namespace {

constexpr double tolerance = 1e-12;

std::map<std::string, std::vector<double>> expected(const ModelFixture& fixture, const std::string& prefix,
                                                    const std::vector<NamedTensor>& like) {
  std::map<std::string, std::vector<double>> result;
  for (const NamedTensor& tensor : like) result[tensor.name] = fixture.tensor(prefix + tensor.name);
  return result;
}

class WholeModel : public testing::TestWithParam<const char*> {};

TEST_P(WholeModel, LossAndGradientsOfTheFirstStep) {
  const ModelFixture fixture(GetParam());
  Engine engine(fixture.options(OptimizerKind::adamw));
  engine.allocate();
  engine.initialise();
  fixture.set_weights(engine);
  const Batch batch = fixture.batch(0);
  const StepResult step = engine.train_step({&batch, 1}, 0, 0, fixture.learning_rate(OptimizerKind::adamw));
  EXPECT_EQ(step.valid_tokens, fixture.valid_tokens[0]);
  EXPECT_NEAR(step.loss, fixture.tensor("adamw.losses")[0], tolerance * step.loss);
  EXPECT_NEAR(step.gradient_norm, fixture.tensor("adamw.gradient_norms")[0], tolerance * step.gradient_norm);
  const auto gradients = engine.gradients();
  EXPECT_LE(relative_difference(expected(fixture, "gradient.", gradients), widened(gradients)), tolerance);
}

void expect_steps(const ModelFixture& fixture, OptimizerKind optimizer, const std::string& name) {
  Engine engine(fixture.options(optimizer));
  engine.allocate();
  engine.initialise();
  fixture.set_weights(engine);
  const std::vector<double> losses = fixture.tensor(name + ".losses");
  for (int64_t step = 0; step < fixture.steps(); ++step) {
    const Batch batch = fixture.batch(step);
    const StepResult result = engine.train_step({&batch, 1}, step, step, fixture.learning_rate(optimizer));
    EXPECT_NEAR(result.loss, losses[static_cast<size_t>(step)], 1e-10);
  }
  const auto weights = engine.weights();
  EXPECT_LE(relative_difference(expected(fixture, name + ".", weights), widened(weights)), 1e-10);
}

TEST_P(WholeModel, TenAdamwSteps) {
  expect_steps(ModelFixture(GetParam()), OptimizerKind::adamw, "adamw");
}

TEST_P(WholeModel, TenLambSteps) {
  expect_steps(ModelFixture(GetParam()), OptimizerKind::lamb, "lamb");
}

INSTANTIATE_TEST_SUITE_P(Fixtures, WholeModel,
                         testing::Values("gpt2", "llama", "gpt2_parallel_window", "llama_documents"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace athanor
