// Reference optimizers against three steps of PyTorch's, and their rules about scale, clipping and skipping.
#include "athanor/kernels/kernel_test_support.h"

namespace athanor::testing {
namespace {

constexpr DType fp64 = DType::fp64;
constexpr double infinity = std::numeric_limits<double>::infinity();

// A matrix of four elements with decay 0.1 and a bias of two without, at twice the learning rate; a gap of
// one element of padding between them, which no update may touch.
BucketTable make_table() {
  BucketTable table;
  table.members.push_back(
      {.name = "w", .shape = {2, 2}, .role = ParameterRole::matrix, .offset = 0, .weight_decay = 0.1});
  table.members.push_back(
      {.name = "b", .shape = {2}, .role = ParameterRole::bias, .offset = 5, .learning_rate_factor = 2});
  return table;
}

constexpr double gap = 77;
Tensor bucket(const std::vector<double>& w, const std::vector<double>& b) {
  return Tensor(fp64, {7}).assign({w[0], w[1], w[2], w[3], gap, b[0], b[1]});
}
Tensor zeros() {
  return bucket({0, 0, 0, 0}, {0, 0});
}
Tensor scalar(double value) {
  return Tensor(fp64, {1}).assign({value});
}

const std::vector<double> first_weights = {0.5, -1.25, 2.0, 0.75}, first_biases = {0.25, -0.5};

Tensor gradient(int step) {
  const std::vector<double> w[] = {{0.3, -0.2, 0.05, 1.5}, {-0.7, 0.4, 0.1, 0.0}, {0.2, 0.2, -0.3, -2.5}};
  return bucket(w[step], {0.1 * (step + 1), -0.2});
}

void expect_weights(const Tensor& master, const std::vector<double>& expected) {
  for (int64_t i = 0; i < 4; ++i) EXPECT_NEAR(master.get(i), expected[static_cast<size_t>(i)], 1e-14) << i;
  EXPECT_EQ(master.get(4), gap);
  for (int64_t i = 0; i < 2; ++i)
    EXPECT_NEAR(master.get(5 + i), expected[static_cast<size_t>(4 + i)], 1e-14) << i;
}

// Three steps. The gradients come scaled by 16 and with a clip factor of 1/4 that undoes a fourfold size.
Call train(OperationKind kind, Attributes attributes) {
  Call update;
  update.kind = kind;
  update.attributes = std::move(attributes);
  update.attributes.average_decay = 0.75;
  update.table = make_table();
  update.step.learning_rate = 0.01;
  update.step.loss_scale = 16;
  const Tensor weights = bucket(first_weights, first_biases);
  update.outputs = {weights, zeros(), zeros(), Tensor(DType::bf16, {7}), weights};
  if (kind == OperationKind::sgd) update.outputs.erase(update.outputs.begin() + 1);
  for (int step = 0; step < 3; ++step) {
    Tensor scaled = gradient(step);
    for (int64_t i = 0; i < 7; ++i) scaled.set(i, 64 * scaled.get(i));
    update.inputs = {scaled, scalar(0.25), scalar(0)};
    update.step.optimizer_step = step + 1;
    if (kind == OperationKind::lamb) {
      Call norms = update;
      norms.kind = OperationKind::lamb_norms;
      for (size_t o = 0; o < 3; ++o) norms.inputs.push_back(update.outputs[o]);
      norms.outputs = {Tensor(fp64, {4})};
      run_reference(norms);
      update.inputs.push_back(norms.outputs[0]);
    }
    const Tensor average = update.outputs.back();
    run_reference(update);
    const Tensor &master = update.outputs.front(), &working = update.outputs[update.outputs.size() - 2];
    for (const int64_t i : {0, 1, 2, 3, 5, 6}) {
      EXPECT_EQ(working.get(i),
                static_cast<double>(static_cast<float>(BFloat16(static_cast<float>(master.get(i))))));
      EXPECT_DOUBLE_EQ(update.outputs.back().get(i), 0.75 * average.get(i) + 0.25 * master.get(i));
    }
  }
  return update;
}

// Expected: torch.optim.AdamW and torch.optim.SGD of PyTorch 2.15 in fp64.
TEST(ReferenceOptimizer, AdamWAsPyTorch) {
  const Call call = train(OperationKind::adamw, {.epsilon = 1e-8, .beta1 = 0.9, .beta2 = 0.95});
  expect_weights(call.outputs[0], {0.49420471570130503, -1.245097390507678, 1.9777672726684856,
                                   0.7337755605387306, 0.19195008966906524, -0.44000000299999986});
}

TEST(ReferenceOptimizer, SgdAsPyTorch) {
  expect_weights(train(OperationKind::sgd, {.momentum = 0.9}).outputs[0],
                 {0.5003717965, -1.24717709675, 1.9885374975, 0.73020308425, 0.23098, -0.47756});
  expect_weights(
      train(OperationKind::sgd, {.momentum = 0.9, .nesterov = true}).outputs[0],
      {0.5008410539935001, -1.24772426870825, 1.9852090578525, 0.74004304297075, 0.220882, -0.467804});
  expect_weights(train(OperationKind::sgd, {}).outputs[0],
                 {0.5005004965000001, -1.2502537467500001, 1.9955079975, 0.7577822342499999, 0.238, -0.488});
}

// Expected: the Lamb class of tools/reference/make_fixtures.py, at its one learning rate.
TEST(ReferenceOptimizer, LambAsPaper) {
  const Call call = train(OperationKind::lamb, {.epsilon = 1e-8, .beta1 = 0.9, .beta2 = 0.95});
  // The biases' rate is twice that of the script, and their update does not depend on their value.
  const double first = 0.25 + 2 * (0.22097504483453262 - 0.25),
               second = -0.5 + 2 * (-0.47000000149999993 + 0.5);
  expect_weights(call.outputs[0], {0.49981061920411346, -1.2619997398965903, 1.9734305007341537,
                                   0.7355490613290958, first, second});
}

TEST(ReferenceOptimizer, TrustRatioStaysWithinBoundsAndIsOneWhereANormIsZero) {
  Call call;
  call.kind = OperationKind::lamb;
  call.table = make_table();
  call.step.learning_rate = 1;
  const auto step = [&](double weight_square, double update_square) {
    call.inputs = {bucket({1, 1, 1, 1}, {1, 1}), scalar(1), scalar(0),
                   Tensor(fp64, {4}).assign({weight_square, update_square, 100, 1})};
    call.outputs = {bucket({1, 1, 1, 1}, {1, 1}), zeros(), zeros(), Tensor(), Tensor()};
    run_reference(call);
    return 1 - call.outputs[0].get(0);  // ratio * (1 + 0.1)
  };
  call.attributes = {.epsilon = 0};
  EXPECT_NEAR(step(100, 1), 10 * 1.1, 1e-12);
  EXPECT_NEAR(1 - call.outputs[0].get(5), 2, 1e-12) << "a bias takes ratio 1";
  EXPECT_NEAR(step(0, 1), 1.1, 1e-12);
  EXPECT_NEAR(step(100, 0), 1.1, 1e-12);
  call.attributes.trust_low = 0.5;
  call.attributes.trust_high = 4;
  EXPECT_NEAR(step(100, 1), 4 * 1.1, 1e-12);
  EXPECT_NEAR(step(1, 100), 0.5 * 1.1, 1e-12);
}

TEST(ReferenceOptimizer, SkipLeavesEverythingUntouched) {
  for (const OperationKind kind : {OperationKind::adamw, OperationKind::sgd, OperationKind::lamb}) {
    Call call;
    call.kind = kind;
    call.table = make_table();
    call.step.learning_rate = 0.1;
    Tensor bad = gradient(0);
    bad.set(1, std::numeric_limits<double>::quiet_NaN());
    call.inputs = {bad, scalar(0), scalar(1)};
    call.outputs = {bucket(first_weights, first_biases), zeros(), zeros(), zeros(), zeros()};
    if (kind == OperationKind::sgd) call.outputs.pop_back();
    if (kind == OperationKind::lamb) call.inputs.push_back(Tensor(fp64, {4}).fill("norms"));
    const std::vector<Tensor> before = call.outputs;
    run_reference(call);
    for (size_t o = 0; o < before.size(); ++o) EXPECT_EQ(call.outputs[o].bytes, before[o].bytes) << o;
  }
}

// The mean loss is 3.
Call clip(const std::vector<double>& norms, double valid_tokens, double maximum, double loss_scale,
          double loss_limit = infinity, double norm_limit = infinity) {
  Call call;
  call.kind = OperationKind::clip;
  call.attributes.maximum_norm = maximum;
  call.step.loss_scale = loss_scale;
  call.step.loss_limit = loss_limit;
  call.step.norm_limit = norm_limit;
  call.inputs = {Tensor(fp64, {static_cast<int64_t>(norms.size())}).assign(norms), scalar(valid_tokens),
                 scalar(3 * valid_tokens)};
  call.outputs = {scalar(-1), scalar(-1), scalar(-1)};
  run_reference(call);
  return call;
}

TEST(ReferenceOptimizer, ClipTakesTheNormWithoutLossScale) {
  const Call clipped = clip({9 * 64, 16 * 64}, 10, 2, 8);
  EXPECT_DOUBLE_EQ(clipped.outputs[0].get(0), 5);
  EXPECT_DOUBLE_EQ(clipped.outputs[1].get(0), 2.0 / 5);
  EXPECT_EQ(clipped.outputs[2].get(0), 0);
  EXPECT_EQ(clip({9, 16}, 10, 6, 1).outputs[1].get(0), 1) << "below the maximum";
  EXPECT_EQ(clip({9, 16}, 10, 0, 1).outputs[1].get(0), 1) << "no maximum";
  EXPECT_EQ(clip({0, 0}, 10, 1, 1).outputs[1].get(0), 1) << "no gradient";
  EXPECT_EQ(clip({}, 10, 1, 1).outputs[0].get(0), 0);
}

// No valid token in the whole step.
TEST(ReferenceOptimizer, EmptyStep_P08_IsSkippedLikeBadNorms) {
  EXPECT_EQ(clip({0, 0}, 0, 1, 1).outputs[2].get(0), 1);
  for (const double bad : {infinity, std::numeric_limits<double>::quiet_NaN()}) {
    const Call call = clip({1, bad}, 10, 1, 1);
    EXPECT_EQ(call.outputs[2].get(0), 1);
    EXPECT_EQ(call.outputs[1].get(0), 0);
  }
}

TEST(ReferenceOptimizer, SkipsStepsBeyondALimit) {
  EXPECT_EQ(clip({9, 16}, 10, 1, 1, 3.1, 5.1).outputs[2].get(0), 0);
  EXPECT_EQ(clip({9, 16}, 10, 1, 1, 2.9, 5.1).outputs[2].get(0), 1) << "mean loss 3";
  EXPECT_EQ(clip({9, 16}, 10, 1, 1, 3.1, 4.9).outputs[2].get(0), 1) << "norm 5";
}

TEST(ReferenceOptimizer, NormsCountEachMember) {
  Call call;
  call.kind = OperationKind::squared_norms;
  call.table = make_table();
  call.inputs = {bucket({1, 2, 3, 4}, {5, 6})};
  call.outputs = {Tensor(fp64, {2})};
  run_reference(call);
  EXPECT_EQ(call.outputs[0].values(), (std::vector<double>{30, 61}));
}

}  // namespace
}  // namespace athanor::testing
