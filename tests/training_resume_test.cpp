// A run that stops and goes on, as often as it likes, is the run that did not stop: every weight, moment,
// average and printed number.

#include <gtest/gtest.h>

#include "athanor/train/schedule.h"
#include "support/training.h"

namespace athanor {
namespace {

// Everything that has state or depends on where the run stands, switched on.
struct Case {
  const char* name;
  RunOptions (*options)(RunOptions options);
};

const Case all_cases[] = {
    {"plain", [](RunOptions o) { return o; }},
    {"dropout_llama",
     [](RunOptions o) {
       o.model = family_defaults("llama");
       o.model.layers = 2;
       o.model.width = 16;
       o.model.heads = 4;
       o.model.key_value_heads = 2;
       o.model.feed_forward = 24;
       o.model.vocabulary = 257;
       o.model.maximum_positions = 16;
       o.model.dropout = 0.2;
       return o;
     }},
    {"bf16_average",
     [](RunOptions o) {
       o.compile.precision = Precision::bf16;
       o.compile.residual = DType::bf16;
       o.compile.optimizer.average_decay = 0.9;
       o.model.dropout = 0.1;
       return o;
     }},
    {"lamb_ramp",
     [](RunOptions o) {
       o.compile.optimizer.kind = OptimizerKind::lamb;
       o.batch = {.batch = 8, .ramp_from = 2, .ramp_step = 2, .ramp_samples = 20};
       return o;
     }},
    {"sgd_momentum_fp64",
     [](RunOptions o) {
       o.compile.optimizer.kind = OptimizerKind::sgd;
       o.compile.precision = Precision::fp64;
       o.kernels = KernelSet::reference;
       return o;
     }},
    {"fp16_recompute_spikes",
     [](RunOptions o) {
       o.compile.precision = Precision::fp16;
       o.compile.recompute = Recompute::full;
       o.spike = {.policy = SpikePolicy::skip, .z_score = 1.2, .window = 10};
       o.steps = 24;
       return o;
     }},
    {"fp16_overflows",  // every third step
     [](RunOptions o) {
       o.compile.precision = Precision::fp16;
       o.loss_scale = {
           .initial = 1024, .growth_factor = 0x1p30, .backoff_factor = 0x1p-30, .growth_interval = 2};
       return o;
     }},
};

class Resume : public testing::TestWithParam<Case> {
 protected:
  // Runs to `steps`: the schedule, which depends on the length of the run, is a constant one.
  RunOptions until(const std::string& name, int64_t steps) {
    RunOptions options = GetParam().options(runs.options(name));
    options.schedule.kind = ScheduleKind::constant;
    options.schedule.warmup_samples = 10;
    options.steps = steps;
    return options;
  }
  int64_t total() { return GetParam().options(runs.options("")).steps; }
  TrainingRuns runs;
};

TEST_P(Resume, OnceAndTwice_P60_IsBitwiseTheUninterruptedRun) {
  const int64_t steps = total();
  const RunOptions whole = until("whole", steps);
  runs.train(whole);
  const RunOptions parts = until("parts", steps);
  runs.train(until("parts", 3));
  runs.resume(until("parts", steps - 4));
  EXPECT_NE(runs.screen().find("at step 3"), std::string::npos) << runs.screen();
  runs.resume(parts);
  EXPECT_NE(runs.screen().find(fmt::format("at step {}", steps - 4)), std::string::npos) << runs.screen();
  EXPECT_EQ(runs.metrics(parts), runs.metrics(whole));
  EXPECT_EQ(runs.metrics(parts).size(), static_cast<size_t>(steps));
  EXPECT_EQ(differences(runs.checkpoint(whole, steps), runs.checkpoint(parts, steps)), "");
  if (std::string(GetParam().name) == "fp16_recompute_spikes") {
    const auto skipped = runs.metric(whole, "skipped");
    EXPECT_TRUE(std::count(skipped.begin(), skipped.end(), "true") > 0) << "no spike: the case is idle";
  }
}

TEST_P(Resume, OtherThreads_ChangeNothing) {
  runs.train(until("whole", 6));
  runs.train(until("parts", 2));
  RunOptions threads = until("parts", 6);
  threads.threads = 3;
  runs.resume(threads);
  EXPECT_EQ(differences(runs.checkpoint(until("whole", 6), 6), runs.checkpoint(threads, 6)), "");
}

INSTANTIATE_TEST_SUITE_P(Cases, Resume, testing::ValuesIn(all_cases),
                         [](const auto& parameter) { return std::string(parameter.param.name); });

class ResumeTest : public testing::Test {
 protected:
  TrainingRuns runs;
};

// The state at the stop is loaded as it was: saving again right after loading gives the same file.
TEST_F(ResumeTest, MasterWeights_P69_AreLoadedAsTheyWere) {
  RunOptions options = runs.options("a");
  options.compile.precision = Precision::bf16;
  options.compile.optimizer.average_decay = 0.9;
  options.schedule.kind = ScheduleKind::constant;
  RunOptions whole = options;
  whole.name = "whole";
  whole.checkpoint = {.every = 5, .keep = 3};
  runs.train(whole);
  options.steps = 5;
  runs.train(options);
  auto at_five = runs.checkpoint(whole, 5);
  at_five[".progress"] = runs.checkpoint(options, 5).at(".progress");  // runs of other lengths
  EXPECT_EQ(differences(at_five, runs.checkpoint(options, 5)), "");
  options.steps = 10;
  runs.resume(options);
  EXPECT_EQ(differences(runs.checkpoint(whole, 10), runs.checkpoint(options, 10)), "");
  // What is saved is wider than the working weights: low bits are set in most numbers.
  const std::string weight = runs.checkpoint(whole, 5).at("block.0.mlp.up.weight");
  ASSERT_EQ(weight.size(), 24u * 16 * 4);
  int with_low_bits = 0;
  for (size_t i = 0; i < weight.size(); i += 4) with_low_bits += weight[i] != 0 || weight[i + 1] != 0 ? 1 : 0;
  EXPECT_GT(with_low_bits, 300);
}

// Four micro-batches a step, 20 steps; stopped after 5.
TEST_F(ResumeTest, Accumulation_P56_GoesOnAtTheNextSample) {
  RunOptions whole = runs.options("whole");
  whole.steps = 20;
  whole.batch.batch = 8;
  whole.schedule.kind = ScheduleKind::constant;
  runs.train(whole);
  RunOptions parts = whole;
  parts.name = "parts";
  parts.steps = 5;
  runs.train(parts);
  EXPECT_NE(runs.checkpoint(parts, 5).at(".position").find("consumed_samples 40"), std::string::npos);
  parts.steps = 20;
  runs.resume(parts);
  EXPECT_EQ(runs.metrics(parts), runs.metrics(whole));
  EXPECT_EQ(runs.metric(parts, "consumed_samples").back(), "160");
  EXPECT_EQ(differences(runs.checkpoint(whole, 20), runs.checkpoint(parts, 20)), "");
}

// Warm-up over 5 steps, cosine to 30; saved at 3, 5 and 17.
TEST_F(ResumeTest, Rates_P66_AreThoseOfTheUninterruptedRun) {
  RunOptions whole = runs.options("whole");
  whole.steps = 30;
  whole.schedule = {.kind = ScheduleKind::cosine, .rate = 0.02, .minimum_rate = 0.001, .warmup_samples = 10};
  runs.train(whole);
  const auto rates = runs.metric(whole, "learning_rate");
  for (int64_t step = 0; step < 30; ++step) {
    EXPECT_EQ(std::stod(rates[static_cast<size_t>(step)]), learning_rate(whole.schedule, 2 * step, 2, 60));
  }
  EXPECT_DOUBLE_EQ(std::stod(rates[0]), 0.004);
  EXPECT_DOUBLE_EQ(std::stod(rates[4]), 0.02);
  for (const int64_t stop : {3, 5, 17}) {
    RunOptions parts = whole;
    parts.name = fmt::format("stop-{}", stop);
    // The length of the run stays 30, as if it had been stopped from outside.
    parts.checkpoint = {.every = stop, .keep = 100};
    runs.train(parts);
    // As if it had ended there: later checkpoints are gone.
    for (const int64_t step : runs.checkpoints(parts)) {
      if (step > stop) {
        system_files().remove(runs.checkpoint_path(parts, step));
      }
    }
    runs.resume(parts);
    EXPECT_NE(runs.screen().find(fmt::format("at step {}\n", stop)), std::string::npos) << runs.screen();
    EXPECT_EQ(runs.metric(parts, "learning_rate"), rates);
    EXPECT_EQ(runs.metrics(parts), runs.metrics(whole));
  }
}

// 128 micro-batches a step.
TEST_F(ResumeTest, TwoLargeSteps_P68_AreTwoSteps) {
  RunOptions options = runs.options("large");
  options.steps = 2;
  options.micro_batch = 1;
  options.batch.batch = 128;
  options.schedule.kind = ScheduleKind::linear;
  options.schedule.warmup_samples = 64;
  EXPECT_EQ(runs.train(options).step, 2);
  const auto rates = runs.metric(options, "learning_rate");
  ASSERT_EQ(rates.size(), 2u);
  for (const std::string& rate : rates) {
    EXPECT_GE(std::stod(rate), 0);
    EXPECT_LE(std::stod(rate), options.schedule.rate);
  }
  EXPECT_EQ(runs.metric(options, "consumed_samples"), (std::vector<std::string>{"128", "256"}));
  EXPECT_NE(runs.checkpoint(options, 2).at(".progress").find("optimizer_step 2\n"), std::string::npos);
}

// 24 samples in micro-batches of 2, then of 4: the batch stays, and so do the samples. In fp64 the sums of
// other micro-batches differ by rounding only.
TEST_F(ResumeTest, Position_P62_IsInSamples) {
  RunOptions whole = runs.options("whole");
  whole.kernels = KernelSet::reference;
  whole.compile.precision = Precision::fp64;
  whole.schedule.kind = ScheduleKind::constant;
  whole.batch = {.batch = 8, .ramp_from = 4, .ramp_step = 4, .ramp_samples = 24};  // 6 steps of 4, then of 8
  runs.train(whole);
  EXPECT_EQ(runs.metric(whole, "consumed_samples"),
            (std::vector<std::string>{"4", "8", "12", "16", "20", "24", "32", "40", "48", "56"}));
  RunOptions parts = whole;
  parts.name = "parts";
  for (const int64_t stop : {6, 7, 10}) {  // after 24 and 32 samples
    parts.steps = stop;
    runs.resume(parts);
    parts.micro_batch = 6 - parts.micro_batch;  // 2, 4, 2
  }
  EXPECT_EQ(runs.metric(parts, "consumed_samples"), runs.metric(whole, "consumed_samples"));
  const auto expected = runs.metric(whole, "loss"), actual = runs.metric(parts, "loss");
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(std::stod(expected[i]), std::stod(actual[i]), 1e-11 * std::stod(expected[i])) << i;
  }
}

// The validation, saves in between and dumps of the interrupted run leave no trace.
TEST_F(ResumeTest, WhatIsOnlyLookedAtMayDiffer) {
  RunOptions whole = runs.options("whole");
  whole.schedule.kind = ScheduleKind::constant;
  whole.compile.optimizer.average_decay = 0.9;
  whole.model.dropout = 0.1;
  runs.train(whole);
  RunOptions parts = whole;
  parts.name = "parts";
  parts.steps = 4;
  parts.data.validation["same"] = parts.data.train;
  parts.validation = {.every = 1, .samples = 3, .use_average = true};
  parts.checkpoint = {.every = 2, .keep = 1};
  runs.train(parts);
  EXPECT_EQ(runs.checkpoints(parts), std::vector<int64_t>{4});
  parts.steps = 10;
  parts.validation.use_average = false;
  parts.dump = {{"block.0.mlp.up"}, 7};
  parts.compile.recompute = Recompute::selective;
  runs.resume(parts);
  EXPECT_EQ(runs.metrics(parts), runs.metrics(whole));
  EXPECT_EQ(differences(runs.checkpoint(whole, 10), runs.checkpoint(parts, 10)), "");
  EXPECT_TRUE(system_files().exists(runs.path(parts, "dump/step_7.safetensors")));
  parts.steps = 11;
  runs.resume(parts);
  EXPECT_NE(runs.screen().find("debug.dump: step 7 is past, nothing will be dumped"), std::string::npos);
}

TEST_F(ResumeTest, OtherDataIsRefusedAndTheFolderStays) {
  RunOptions options = runs.options("a");
  options.schedule.kind = ScheduleKind::constant;
  runs.train(options);
  const std::string metrics = runs.text(options, "metrics.jsonl"),
                    configuration = runs.text(options, "config.toml");
  options.steps = 12;
  options.resume = true;
  options.data.sequence_length = 8;
  EXPECT_NE(runs.error_of(options).find("user error: "), std::string::npos);
  options.data.sequence_length = 16;
  options.seed = 2;
  EXPECT_NE(runs.error_of(options).find("seed"), std::string::npos);
  options.seed = 1;
  write_file_atomically(system_files(), runs.folder().path("other.txt"), std::string(4000, 'x'));
  options.data.train = runs.folder().path("other.txt");
  EXPECT_NE(runs.error_of(options), "");
  EXPECT_EQ(runs.text(options, "metrics.jsonl"), metrics);
  EXPECT_EQ(runs.text(options, "config.toml"), configuration);
  options.data.train = runs.folder().path("text.txt");
  EXPECT_EQ(runs.error_of(options), "");
}

// Longer than planned: not once the rate has begun to fall, or steps would have had other rates.
TEST_F(ResumeTest, ADecayThatHasBegun_P66_KeepsItsEnd) {
  RunOptions options = runs.options("a");
  options.schedule = {.kind = ScheduleKind::warmup_stable_decay,
                      .rate = 0.01,
                      .minimum_rate = 0,
                      .warmup_samples = 0,
                      .decay_samples = 8};
  options.checkpoint = {.every = 6, .keep = 5};  // the decay begins after step 6
  runs.train(options);
  options.steps = 14;
  options.resume = true;
  EXPECT_NE(runs.error_of(options).find("user error: train.steps: "), std::string::npos);
  system_files().remove(runs.checkpoint_path(options, 10));
  EXPECT_EQ(runs.error_of(options), "");
  RunOptions whole = options;
  whole.name = "whole";
  whole.resume = false;
  runs.train(whole);
  EXPECT_EQ(runs.metrics(options), runs.metrics(whole));
}

// A checkpoint with a flipped bit is passed over for the one before it, and the result is the same.
TEST_F(ResumeTest, ADamagedCheckpoint_P103_IsPassedOver) {
  RunOptions whole = runs.options("whole");
  whole.checkpoint = {.every = 4, .keep = 5};
  runs.train(whole);
  const auto expected = runs.checkpoint(whole, 10);
  const auto metrics = runs.metrics(whole);
  for (const int64_t step : {10, 8}) {
    const std::string path = runs.checkpoint_path(whole, step);
    std::string bytes = read_file(system_files(), path, 1 << 24);
    bytes[bytes.size() - 100] = static_cast<char>(bytes[bytes.size() - 100] ^ 4);
    write_file_atomically(system_files(), path, bytes);
  }
  runs.resume(whole);
  EXPECT_NE(runs.screen().find("passed over"), std::string::npos) << runs.screen();
  EXPECT_NE(runs.screen().find("at step 4\n"), std::string::npos) << runs.screen();
  EXPECT_EQ(runs.metrics(whole), metrics);
  EXPECT_EQ(differences(expected, runs.checkpoint(whole, 10)), "");
}

TEST_F(ResumeTest, ANewRunDoesNotWriteOverAnOldOne) {
  const RunOptions options = runs.options("a");
  runs.train(options);
  const std::string metrics = runs.text(options, "metrics.jsonl");
  EXPECT_NE(runs.error_of(options).find("holds checkpoints beyond step 0"), std::string::npos);
  EXPECT_EQ(runs.text(options, "metrics.jsonl"), metrics);
}

}  // namespace
}  // namespace athanor
