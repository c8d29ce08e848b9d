// What must not change a step: how the batch is cut, recomputation, chunks of the head, the number of
// threads.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <span>

#include "support/model_fixture.h"

namespace athanor {
namespace {

struct Outcome {
  std::vector<StepResult> steps;
  std::map<std::string, std::vector<double>> gradients, weights;
};

// Three steps of AdamW, each batch cut into micro-batches of `samples`.
Outcome run(const ModelFixture& fixture, EngineOptions options, int64_t samples,
            const std::function<void(std::vector<Batch>&)>& change = {}) {
  std::vector<Batch> first = fixture.micro_batches(0, samples);
  if (change) change(first);
  options.micro_batch = samples;
  options.micro_batch_counts = {static_cast<int32_t>(first.size())};
  Engine engine(options);
  engine.allocate();
  engine.initialise();
  fixture.set_weights(engine);
  Outcome outcome;
  for (int64_t step = 0; step < 3; ++step) {
    std::vector<Batch> batches = fixture.micro_batches(step, samples);
    if (change) change(batches);
    outcome.steps.push_back(engine.train_step(batches, step, step, 1e-2));
    if (step == 0) outcome.gradients = widened(engine.gradients());
  }
  outcome.weights = widened(engine.weights());
  // The gradient of a key bias is zero but for rounding, which Adam amplifies.
  std::erase_if(outcome.weights,
                [](const auto& entry) { return entry.first.ends_with("attention.key.bias"); });
  return outcome;
}

void expect_close(const Outcome& expected, const Outcome& actual, double tolerance) {
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_NEAR(expected.steps[i].loss, actual.steps[i].loss, tolerance * std::abs(expected.steps[i].loss));
  }
  EXPECT_LE(relative_difference(expected.gradients, actual.gradients), tolerance);
  EXPECT_LE(relative_difference(expected.weights, actual.weights), tolerance);
}

// Name of the first tensor that differs at all.
std::string first_difference(const std::map<std::string, std::vector<double>>& expected,
                             const std::map<std::string, std::vector<double>>& actual) {
  for (const auto& [name, values] : expected) {
    if (actual.at(name) != values) return name;
  }
  return "";
}

void expect_same_bits(const Outcome& expected, const Outcome& actual) {
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    EXPECT_EQ(expected.steps[i].loss, actual.steps[i].loss);
    EXPECT_EQ(expected.steps[i].gradient_norm, actual.steps[i].gradient_norm);
  }
  EXPECT_EQ(first_difference(expected.gradients, actual.gradients), "");
  EXPECT_EQ(first_difference(expected.weights, actual.weights), "");
}

// Leaves only the first label of the first sample, and all of the others.
void mask_unevenly(std::vector<Batch>& batches) {
  Batch& batch = batches.front();
  for (int64_t i = 1; i < batch.sequence_length; ++i) batch.labels[static_cast<size_t>(i)] = ignored_label;
}

// The samples of several batches as one.
Batch joined(std::span<const Batch> parts) {
  Batch whole;
  whole.sequence_length = parts.front().sequence_length;
  const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
  for (const Batch& part : parts) {
    whole.samples += part.samples;
    append(whole.token_ids, part.token_ids);
    append(whole.labels, part.labels);
    append(whole.positions, part.positions);
    append(whole.documents, part.documents);
    append(whole.sample_ids, part.sample_ids);
  }
  whole.indices = whole_indices(whole.samples, whole.sequence_length);
  return whole;
}

class StepInvariance : public testing::TestWithParam<const char*> {
 protected:
  ModelFixture fixture{GetParam()};
  EngineOptions options = fixture.options(OptimizerKind::adamw);

  void turn_dropout_on() {
    options.model.dropout = 0.1;
    options.seed = 7;
  }
};

// The loss of a step is one sum over its valid tokens, divided once: cutting the batch changes nothing.
TEST_P(StepInvariance, UnevenMicroBatches_P06_OneDivision) {
  turn_dropout_on();
  const Outcome whole = run(fixture, options, 2, mask_unevenly);
  const Outcome cut = run(fixture, options, 1, mask_unevenly);
  EXPECT_LT(whole.steps[0].valid_tokens, fixture.valid_tokens[0]);
  EXPECT_EQ(whole.steps[0].valid_tokens, cut.steps[0].valid_tokens);
  expect_close(whole, cut, 1e-12);
}

// Ten samples with unlike numbers of labels in 1, 2, 5 and 10 micro-batches, from the first to the last and
// the other way round.
TEST_P(StepInvariance, NumberAndOrderOfMicroBatches_P06_ChangeNothing) {
  turn_dropout_on();
  constexpr int64_t total = 10;
  std::vector<Batch> samples;
  for (int64_t step = 0; static_cast<int64_t>(samples.size()) < total; ++step) {
    for (Batch& sample : fixture.micro_batches(step, 1)) {
      const auto masked = std::min(static_cast<int64_t>(samples.size()) * 2, sample.sequence_length - 1);
      std::fill_n(sample.labels.begin(), masked, ignored_label);
      samples.push_back(std::move(sample));
    }
  }
  ASSERT_EQ(samples.size(), static_cast<size_t>(total));
  std::optional<Outcome> whole;
  for (const bool reversed : {false, true}) {
    for (const int64_t size : {10, 5, 2, 1}) {
      std::vector<Batch> batches;
      for (size_t first = 0; first < samples.size(); first += static_cast<size_t>(size))
        batches.push_back(joined(std::span(samples).subspan(first, static_cast<size_t>(size))));
      if (reversed) std::reverse(batches.begin(), batches.end());
      options.micro_batch = size;
      options.micro_batch_counts = {static_cast<int32_t>(batches.size())};
      Engine engine(options);
      engine.allocate();
      engine.initialise();
      fixture.set_weights(engine);
      Outcome outcome;
      outcome.steps.push_back(engine.train_step(batches, 0, 0, 1e-2));
      outcome.gradients = outcome.weights = widened(engine.gradients());
      if (!whole) whole = outcome;
      SCOPED_TRACE(fmt::format("{} micro-batches, reversed {}", batches.size(), reversed));
      EXPECT_EQ(outcome.steps[0].valid_tokens, whole->steps[0].valid_tokens);
      expect_close(*whole, outcome, 1e-12);
    }
  }
}

TEST_P(StepInvariance, MicroBatchWithoutValidTokens_P08_AddsNothing) {
  const auto only_second = [](std::vector<Batch>& batches) {
    Batch& batch = batches.front();
    std::fill_n(batch.labels.begin(), batch.sequence_length, ignored_label);
  };
  const Outcome whole = run(fixture, options, 2, only_second), cut = run(fixture, options, 1, only_second);
  EXPECT_TRUE(std::isfinite(cut.steps[2].loss));
  expect_close(whole, cut, 1e-12);
}

TEST_P(StepInvariance, StepWithoutValidTokens_P08_ChangesNothing) {
  Engine engine(options);
  engine.allocate();
  engine.initialise();
  fixture.set_weights(engine);
  const auto before = widened(engine.state());
  Batch batch = fixture.batch(0);
  std::fill(batch.labels.begin(), batch.labels.end(), ignored_label);
  const StepResult result = engine.train_step({&batch, 1}, 0, 0, 1e-2);
  EXPECT_TRUE(result.skipped);
  EXPECT_EQ(result.valid_tokens, 0);
  EXPECT_EQ(result.gradient_norm, 0);
  for (const auto& [name, values] : widened(engine.gradients())) {
    for (const double value : values) ASSERT_EQ(value, 0) << name;
  }
  EXPECT_EQ(first_difference(before, widened(engine.state())), "");
}

TEST_P(StepInvariance, Recomputation_P72_ChangesNoBit) {
  turn_dropout_on();
  const Outcome kept = run(fixture, options, 1);
  for (const Recompute mode : {Recompute::selective, Recompute::full}) {
    options.compile.recompute = mode;
    expect_same_bits(kept, run(fixture, options, 1));
  }
}

TEST_P(StepInvariance, ChunksOfTheHead) {
  options.compile.head_chunk_tokens = 1000;
  const Outcome whole = run(fixture, options, 2);
  for (const int64_t chunk : {1, 5, 8, 24}) {
    options.compile.head_chunk_tokens = chunk;
    expect_close(whole, run(fixture, options, 2), 1e-12);
  }
}

TEST_P(StepInvariance, Dropout_IsTheSameForEveryCutAndOtherForEveryStep) {
  turn_dropout_on();
  const Outcome with = run(fixture, options, 2);
  options.seed = 8;
  const Outcome other_seed = run(fixture, options, 2);
  EXPECT_NE(with.steps[0].loss, other_seed.steps[0].loss);
}

// The kernels that people run, in the types they run them in.
EngineOptions on_cpu(EngineOptions options, Precision precision) {
  options.kernels = KernelSet::cpu;
  options.compile.precision = precision;
  return options;
}

TEST_P(StepInvariance, ThreadCount_ChangesNoBit) {
  turn_dropout_on();
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    EngineOptions cpu = on_cpu(options, precision);
    const Outcome one = run(fixture, cpu, 1);
    for (const int threads : {2, 3}) {
      cpu.threads = threads;
      expect_same_bits(one, run(fixture, cpu, 1));
    }
  }
}

TEST_P(StepInvariance, Recomputation_P72_ChangesNoBitOnTheCpu) {
  turn_dropout_on();
  for (const auto& [precision, residual] :
       {std::pair{Precision::fp32, DType::fp32}, std::pair{Precision::bf16, DType::fp32},
        std::pair{Precision::bf16, DType::bf16}}) {
    EngineOptions cpu = on_cpu(options, precision);
    cpu.compile.residual = residual;
    const Outcome kept = run(fixture, cpu, 1);
    for (const Recompute mode : {Recompute::selective, Recompute::full}) {
      cpu.compile.recompute = mode;
      expect_same_bits(kept, run(fixture, cpu, 1));
    }
  }
}

// Bounds for these tiny models: the rounding of the narrow type times a small factor.
TEST_P(StepInvariance, CpuKernelsAgreeWithFp64) {
  turn_dropout_on();
  const Outcome wide = run(fixture, options, 2);
  for (const auto& [precision, tolerance] :
       {std::pair{Precision::fp32, 2e-5}, std::pair{Precision::bf16, 5e-2},
        std::pair{Precision::fp16, 1e-2}}) {
    const Outcome narrow = run(fixture, on_cpu(options, precision), 2);
    EXPECT_NEAR(wide.steps[0].loss, narrow.steps[0].loss, tolerance * wide.steps[0].loss);
    EXPECT_LE(relative_difference(wide.gradients, narrow.gradients), tolerance);
  }
}

INSTANTIATE_TEST_SUITE_P(Fixtures, StepInvariance,
                         testing::Values("gpt2", "llama", "gpt2_parallel_window", "llama_documents"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace athanor
