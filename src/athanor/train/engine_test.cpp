#include "athanor/train/engine.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

using Bytes = std::map<std::string, std::vector<std::byte>>;

Bytes initial_weights(const EngineOptions& options) {
  return bytes_of(make_engine(options)->weights());
}

// One set of initial weights, whatever else is chosen.
TEST(InitialWeights, DependOnSeedNameAndElement_P132_Only) {
  for (const char* family : {"gpt2", "llama"}) {
    EngineOptions options = tiny_options(family);
    const Bytes expected = initial_weights(options);
    options.threads = 3;
    options.micro_batch = 1;
    options.micro_batch_counts = {1, 4};
    options.generation = GenerationShape::of(2, 8);
    options.validation_micro_batch = 3;
    EXPECT_EQ(changed(expected, initial_weights(options)), "");
    options.kernels = KernelSet::reference;
    for (const Precision precision : {Precision::bf16, Precision::fp16}) {
      options.compile.precision = precision;
      options.compile.recompute = Recompute::full;
      options.compile.optimizer.kind = OptimizerKind::lamb;
      EXPECT_EQ(changed(expected, initial_weights(options)), "");
    }
    // In fp64 they are the numbers that the others are roundings of.
    options.compile.precision = Precision::fp64;
    for (const auto& [name, bytes] : initial_weights(options)) {
      for (size_t i = 0; i < bytes.size() / sizeof(double); ++i) {
        double wide = 0;
        float narrow = 0;
        std::memcpy(&wide, bytes.data() + i * sizeof wide, sizeof wide);
        std::memcpy(&narrow, expected.at(name).data() + i * sizeof narrow, sizeof narrow);
        ASSERT_EQ(static_cast<float>(wide), narrow) << name << " " << i;
      }
    }
    options.seed = 4;
    EXPECT_NE(changed(expected, initial_weights(options)), "");
  }
}

// A parameter's place among the others is no part of the key.
TEST(InitialWeights, OfOneName_P132_AreTheSameInAnotherModel) {
  EngineOptions options = tiny_options("gpt2");
  const Bytes expected = initial_weights(options);
  options.model.tied_head = false;  // one more matrix, in another bucket
  options.model.bias = false;       // and gaps closed
  const Bytes other = initial_weights(options);
  for (const char* name :
       {"embedding.token.weight", "block.1.attention.value.weight", "block.1.mlp.down.weight"}) {
    EXPECT_EQ(other.at(name), expected.at(name)) << name;
  }
  options.model.layers = 3;
  EXPECT_EQ(initial_weights(options).at("block.1.mlp.up.weight"), expected.at("block.1.mlp.up.weight"));
}

TEST(InitialWeights, AreTheStatedNumbers_P132_OfTheGenerator) {
  EngineOptions options = tiny_options("gpt2");
  options.model.query_key_norm = true;
  const auto engine = make_engine(options);
  std::map<std::vector<std::byte>, std::string> seen;
  for (const NamedTensor& weight : engine->weights()) {
    const auto values = floats(weight);
    if (weight.name.ends_with(".bias")) {
      for (const float value : values) ASSERT_EQ(value, 0) << weight.name;
    } else if (weight.shape.rank() < 2) {
      for (const float value : values) ASSERT_EQ(value, 1) << weight.name;
    } else {
      // Projections into the residual stream are divided by sqrt(2 layers) = 2.
      const bool projection =
          weight.name.ends_with("attention.output.weight") || weight.name.ends_with("mlp.down.weight");
      const double deviation = projection ? 0.01 : 0.02;
      const RandomKey key(options.seed, RandomPurpose::initial_weights, weight.name);
      for (size_t i = 0; i < values.size(); ++i) {
        const auto pair = normal_pair(random_block(key, i / 2));
        ASSERT_EQ(values[i], static_cast<float>(deviation * pair[i % 2])) << weight.name << " " << i;
      }
      const std::vector<std::byte> bytes(weight.bytes.begin(), weight.bytes.end());
      EXPECT_EQ(seen.emplace(bytes, weight.name).first->second, weight.name)
          << "two parameters have the same numbers";
    }
  }
  EXPECT_EQ(seen.size(), 2u + 2 * 6);
}

// Zero gradients (clipped to nothing), rate 1, decay 0.1: only the decay is left.
class WeightDecay : public testing::TestWithParam<OptimizerKind> {
 protected:
  WeightDecay() {
    options = tiny_options("gpt2");
    options.model.query_key_norm = true;
    options.model.feed_forward = 1;  // matrices of one row and one column, a bias of one element
    options.compile.optimizer.kind = GetParam();
    options.compile.optimizer.maximum_norm = 1e-300;
  }
  // What each parameter was multiplied with.
  std::map<std::string, double> factors() {
    const auto engine = make_engine(options);
    for (const NamedTensor& weight : engine->weights()) {
      const auto values = floats(weight);
      for (size_t i = 0; i < values.size(); ++i) values[i] = 0.25F + static_cast<float>(i % 7) / 8;
    }
    engine->refresh_working();
    const Bytes before = bytes_of(engine->weights());
    const Batch batch = tiny_batch(options, 0);
    const StepResult result = engine->train_step({&batch, 1}, 0, 0, 1.0);
    EXPECT_FALSE(result.skipped);
    EXPECT_GT(result.gradient_norm, 0);
    std::map<std::string, double> factors;
    for (const NamedTensor& weight : engine->weights()) {
      const auto values = floats(weight);
      const auto* old = reinterpret_cast<const float*>(before.at(weight.name).data());
      factors[weight.name] = static_cast<double>(values[0] / old[0]);
      for (size_t i = 0; i < values.size(); ++i) {
        EXPECT_NEAR(static_cast<double>(values[i]), factors[weight.name] * static_cast<double>(old[i]), 1e-7)
            << weight.name;
      }
    }
    return factors;
  }
  EngineOptions options;
};

TEST_P(WeightDecay, GoesByRole_P133_ThroughAWholeStep) {
  const auto found = factors();
  EXPECT_GT(found.size(), 20u);
  for (const auto& [name, factor] : found) {
    const bool vector = name.ends_with(".bias") || name.find("norm") != std::string::npos;
    if (vector) {
      EXPECT_EQ(factor, 1) << name;
    } else {
      EXPECT_NEAR(factor, 0.9, 1e-6) << name;
    }
  }
  EXPECT_EQ(found.at("block.0.mlp.up.bias"), 1);              // one element
  EXPECT_NEAR(found.at("block.0.mlp.up.weight"), 0.9, 1e-6);  // one row
}

TEST_P(WeightDecay, FollowsTheOptions_P133_ForEachRole) {
  options.compile.optimizer.decay_embeddings = false;
  options.compile.optimizer.decay_norms = true;
  options.compile.optimizer.decay_biases = true;
  options.compile.optimizer.matrix_rate = 2;
  options.compile.optimizer.norm_rate = 3;
  options.compile.optimizer.bias_rate = 4;
  for (const auto& [name, factor] : factors()) {
    double expected = 0.8;
    if (name.starts_with("embedding.")) expected = 1;
    if (name.find("norm") != std::string::npos) expected = 0.7;
    if (name.ends_with(".bias")) expected = name.find("norm") != std::string::npos ? factor : 0.6;
    EXPECT_NEAR(factor, expected, 1e-6) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, WeightDecay, testing::Values(OptimizerKind::adamw, OptimizerKind::sgd),
                         [](const auto& parameter) {
                           return parameter.param == OptimizerKind::adamw ? "adamw" : "sgd";
                         });

class NonFiniteTest : public testing::TestWithParam<Precision> {
 protected:
  NonFiniteTest() {
    options = tiny_options("llama");
    options.compile.precision = GetParam();
    options.micro_batch_counts = {2};
    engine = make_engine(options);
    batches = {tiny_batch(options, 0), tiny_batch(options, 1)};
  }
  void poison(const std::string& name, size_t element, float value) {
    floats(named(engine->weights(), name))[element] = value;
    engine->refresh_working();
  }
  // The step leaves everything as it was, and this is found.
  NonFinite found() {
    const Bytes before = bytes_of(engine->state());
    const StepResult result = engine->train_step(batches, 0, 0, 1e-2);
    EXPECT_TRUE(result.skipped);
    EXPECT_FALSE(std::isfinite(result.loss) && std::isfinite(result.gradient_norm));
    const auto found = engine->locate_non_finite(batches, 0, 0, 1e-2);
    EXPECT_EQ(changed(before, bytes_of(engine->state())), "");
    return found.value_or(NonFinite{});
  }
  EngineOptions options;
  std::unique_ptr<Engine> engine;
  std::vector<Batch> batches;
};

constexpr float nan_value = std::numeric_limits<float>::quiet_NaN();

TEST_P(NonFiniteTest, AWeightIsFound_P103_ByItsOwnName) {
  poison("block.1.attention.key.weight", 19, nan_value);
  NonFinite bad = found();
  EXPECT_EQ(bad.tensor, "block.1.attention.key.weight");  // the second of three that are merged
  EXPECT_EQ(bad.index, 19);
  EXPECT_EQ(bad.micro_batch, 0);
  EXPECT_EQ(bad.operation, "matmul");
  EXPECT_EQ(bad.part, "forward");
  EXPECT_TRUE(std::isnan(bad.value));
  poison("block.0.mlp_norm.weight", 3, std::numeric_limits<float>::infinity());  // earlier in the program
  bad = found();
  EXPECT_EQ(bad.tensor, "block.0.mlp_norm.weight");
  EXPECT_EQ(bad.index, 3);
  EXPECT_TRUE(std::isinf(bad.value));
}

TEST_P(NonFiniteTest, AnOverflowIsFound_P103_WhereItArises) {
  for (const char* name : {"block.1.mlp_norm.weight", "block.1.mlp.up.weight"}) {
    for (float& value : floats(named(engine->weights(), name))) value = 1e30F;
  }
  engine->refresh_working();
  const NonFinite bad = found();
  EXPECT_NE(bad.tensor.find("block.1.mlp.up"), std::string::npos) << bad.tensor;
  EXPECT_EQ(bad.part, "forward");
  EXPECT_FALSE(std::isfinite(bad.value));
}

TEST_P(NonFiniteTest, NothingIsFoundInASoundStep) {
  EXPECT_FALSE(engine->train_step(batches, 0, 0, 1e-2).skipped);
  EXPECT_FALSE(engine->locate_non_finite(batches, 1, 1, 1e-2).has_value());
}

TEST_P(NonFiniteTest, AStepBeyondALimitIsNotCommitted) {
  const Bytes before = bytes_of(engine->state());
  const StepResult sound = engine->train_step(batches, 0, 0, 0);
  for (const SkipLimits& limits :
       {SkipLimits{.loss = sound.loss * 0.99}, SkipLimits{.gradient_norm = sound.gradient_norm * 0.99}}) {
    const auto fresh = make_engine(options);
    EXPECT_TRUE(fresh->train_step(batches, 0, 0, 1e-2, limits).skipped);
    EXPECT_EQ(changed(before, bytes_of(fresh->state())), "");
    EXPECT_TRUE(fresh->observed_step(batches, 0, 0, 1e-2, {}, limits).skipped);
    EXPECT_EQ(changed(before, bytes_of(fresh->state())), "");
  }
  const SkipLimits at_the_limit{.loss = sound.loss, .gradient_norm = sound.gradient_norm};
  EXPECT_FALSE(make_engine(options)->train_step(batches, 0, 0, 1e-2, at_the_limit).skipped);
}

INSTANTIATE_TEST_SUITE_P(Precisions, NonFiniteTest, testing::Values(Precision::fp32, Precision::bf16),
                         [](const auto& parameter) {
                           return parameter.param == Precision::fp32 ? "fp32" : "bf16";
                         });

// The CPU's kernels have no fp64 products: the model runs in fp32, and all its state is fp32.
TEST(Engine, RunsInFp32WhereFp64IsMissing) {
  EngineOptions options = tiny_options("gpt2");
  options.kernels = KernelSet::cpu;
  const auto narrow = make_engine(options);
  options.compile.precision = Precision::fp64;
  const auto wide = make_engine(options);
  EXPECT_FALSE(wide->programs().notes.empty());
  const Batch batch = tiny_batch(options, 0);
  EXPECT_EQ(wide->train_step({&batch, 1}, 0, 0, 1e-2).loss, narrow->train_step({&batch, 1}, 0, 0, 1e-2).loss);
  EXPECT_EQ(changed(bytes_of(narrow->state()), bytes_of(wide->state())), "");
}

// Judging in between leaves no trace in what follows.
TEST(Engine, EvaluationAndAveragesComeAndGo) {
  for (const Precision precision : {Precision::fp32, Precision::bf16}) {
    EngineOptions options = tiny_options("gpt2");
    options.compile.precision = precision;
    options.compile.optimizer.average_decay = 0.9;
    options.model.dropout = 0.1;
    options.validation_micro_batch = 2;
    const auto plain = make_engine(options), judged = make_engine(options);
    for (int64_t step = 0; step < 3; ++step) {
      const Batch batch = tiny_batch(options, step);
      plain->train_step({&batch, 1}, step, step, 1e-2);
      judged->train_step({&batch, 1}, step, step, 1e-2);
      const Bytes state = bytes_of(judged->state());
      const double direct = judged->evaluate(batch).loss_sum;
      judged->with_average([&] { EXPECT_NE(judged->evaluate(batch).loss_sum, direct); });
      EXPECT_THROW(judged->with_average([] { throw_user_error("it fails"); }), Error);
      EXPECT_EQ(judged->evaluate(batch).loss_sum, direct);
      EXPECT_EQ(changed(state, bytes_of(judged->state())), "");
    }
    EXPECT_EQ(changed(bytes_of(plain->state()), bytes_of(judged->state())), "");
  }
}

// average = decay x average + (1 - decay) x weight, from the initial weights on.
TEST(Engine, AveragesFollowTheWeights) {
  EngineOptions options = tiny_options("gpt2");
  options.compile.optimizer.average_decay = 0.75;
  const auto engine = make_engine(options);
  const auto values = [&](const std::string& name) {
    const auto span = floats(named(engine->state(), name));
    return std::vector<float>(span.begin(), span.end());
  };
  std::vector<float> expected = values("block.0.mlp.up.weight");
  for (int64_t step = 0; step < 3; ++step) {
    const Batch batch = tiny_batch(options, step);
    engine->train_step({&batch, 1}, step, step, 1e-2);
    const auto weights = values("block.0.mlp.up.weight"), averages = values("average.block.0.mlp.up.weight");
    for (size_t i = 0; i < weights.size(); ++i) {
      expected[i] = 0.75F * expected[i] + 0.25F * weights[i];
      ASSERT_NEAR(averages[i], expected[i], 1e-7);
    }
  }
}

}  // namespace
}  // namespace athanor
