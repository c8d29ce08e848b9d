// The training loop as a whole: validation, spikes, values that are not finite, dumps, a full disk, what it
// writes.

#include "support/training.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "athanor/base/error.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/checkpoint/safetensors.h"
#include "athanor/data/token_file.h"
#include "athanor/model/model.h"

namespace athanor {
namespace {

class Training : public testing::Test {
 protected:
  std::vector<nlohmann::json> validations(const RunOptions& options) {
    std::vector<nlohmann::json> lines;
    std::istringstream stream(runs.text(options, "validation.jsonl"));
    for (std::string line; std::getline(stream, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::string file(const std::string& name, const std::string& contents) {
    write_file_atomically(system_files(), runs.folder().path(name), contents);
    return runs.folder().path(name);
  }
  bool exists(const RunOptions& options, const std::string& name) {
    return system_files().exists(runs.path(options, name));
  }
  std::string progress(const RunOptions& options, int64_t step) {
    return runs.checkpoint(options, step).at(".progress");
  }
  // A step's weights, moments and averages, without where the run stands.
  std::map<std::string, std::string> tensors(const RunOptions& options, int64_t step) {
    auto all = runs.checkpoint(options, step);
    std::erase_if(all, [](const auto& entry) { return entry.first.starts_with("."); });
    return all;
  }
  TrainingRuns runs;
};

TEST_F(Training, ValidationChangesNothing) {
  RunOptions plain = runs.options("plain");
  plain.compile.precision = Precision::bf16;
  plain.compile.optimizer.average_decay = 0.9;
  plain.model.dropout = 0.2;
  runs.train(plain);
  for (const bool average : {false, true}) {
    RunOptions judged = plain;
    judged.name = average ? "average" : "judged";
    judged.data.validation = {{"one", plain.data.train}, {"two", file("two.txt", std::string(200, 'x'))}};
    judged.validation = {.every = 1, .samples = 5, .use_average = average};
    runs.train(judged);
    EXPECT_EQ(runs.metrics(judged), runs.metrics(plain));
    EXPECT_EQ(differences(runs.checkpoint(plain, 10), runs.checkpoint(judged, 10)), "");
    EXPECT_EQ(validations(judged).size(), 20u);
  }
}

// The mean over all tokens of a set, each of its samples once, the last batch filled up or not; the same
// samples every time; without dropout.
TEST_F(Training, ValidationIsTheSameEveryTime_AndCountsEachTokenOnce) {
  RunOptions options = runs.options("a");
  options.kernels = KernelSet::reference;
  options.compile.precision = Precision::fp64;
  options.schedule.rate = 0;  // the weights stay
  options.model.dropout = 0.5;
  std::string text;
  for (int i = 0; i < 16 * 7 + 1; ++i) text += static_cast<char>('a' + i * i % 23);
  options.data.validation = {{"seven", file("seven.txt", text)},
                             {"one", file("one.txt", text.substr(0, 17))}};
  options.validation.every = 3;
  runs.train(options);
  const auto all = validations(options);
  ASSERT_EQ(all.size(), 8u);  // after steps 3, 6, 9 and 10
  for (size_t i = 0; i < all.size(); ++i) {
    const bool one = i % 2 == 0;  // by name
    EXPECT_EQ(all[i].at("set"), one ? "one" : "seven");
    EXPECT_EQ(all[i].at("tokens"), one ? 16 : 16 * 7);
    EXPECT_EQ(all[i].at("loss"), all[i % 2].at("loss"));
  }
  // Batches of 3 leave one sample for the third, batches of 7 none: the mean is the same.
  for (const int64_t micro_batch : {1, 3, 7}) {
    RunOptions other = options;
    other.name = fmt::format("by-{}", micro_batch);
    other.micro_batch = micro_batch;
    other.model.dropout = 0;
    runs.train(other);
    for (size_t set = 0; set < 2; ++set) {
      const double expected = all[set].at("loss");
      EXPECT_NEAR(validations(other)[set].at("loss").get<double>(), expected, 1e-12 * expected);
    }
  }
  // A limit takes the first samples.
  RunOptions first = options;
  first.name = "first";
  first.validation.samples = 1;
  runs.train(first);
  EXPECT_EQ(validations(first)[1].at("tokens"), 16);
  EXPECT_EQ(validations(first)[1].at("loss"), all[0].at("loss"));  // the texts begin alike
}

TEST_F(Training, SpikesAreSkippedWarnedOfOrStopTheRun) {
  RunOptions options = runs.options("skip");
  options.steps = 30;
  options.checkpoint = {.every = 1, .keep = 100};
  options.spike = {.policy = SpikePolicy::skip, .z_score = 1, .window = 10};
  runs.train(options);
  const auto skipped = runs.metric(options, "skipped"), events = runs.metric(options, "event");
  int64_t spikes = 0;
  for (int64_t step = 2; step <= 30; ++step) {
    const bool spike = skipped[static_cast<size_t>(step - 1)] == "true";
    spikes += spike ? 1 : 0;
    EXPECT_EQ(spike, events[static_cast<size_t>(step - 1)].find("spike") != std::string::npos);
    const std::string changed = differences(tensors(options, step - 1), tensors(options, step));
    EXPECT_EQ(changed.empty(), spike) << step << " " << changed;
    EXPECT_NE(progress(options, step)
                  .find(fmt::format("step {}\noptimizer_step {}\nconsumed_samples {}\n", step, step - spikes,
                                    2 * step)),
              std::string::npos);
  }
  EXPECT_GT(spikes, 0);
  EXPECT_LT(spikes, 29);

  RunOptions warned = options;
  warned.name = "warn";
  warned.spike.policy = SpikePolicy::warn;
  runs.train(warned);
  EXPECT_NE(runs.screen().find("spike ("), std::string::npos) << runs.screen();
  EXPECT_NE(progress(warned, 30).find("optimizer_step 30\n"), std::string::npos);

  RunOptions stopped = options;
  stopped.name = "stop";
  stopped.checkpoint.every = 0;
  stopped.spike.policy = SpikePolicy::stop;
  const std::string error = runs.error_of(stopped);
  EXPECT_EQ(error.substr(0, 15), "stop job: step ") << error;
  EXPECT_NE(error.find("spike ("), std::string::npos) << error;
  const auto saved = runs.checkpoints(stopped);
  ASSERT_EQ(saved.size(), 1u);
  EXPECT_EQ(static_cast<int64_t>(runs.metrics(stopped).size()), saved[0]);
  stopped.spike.policy = SpikePolicy::warn;
  runs.resume(stopped);
  EXPECT_EQ(runs.metrics(stopped).size(), 30u);
}

// What looks like one spike after another is another level; leaving all of it out for ever would train
// nothing.
TEST_F(Training, SkippingWithoutEndStopsTheRun) {
  RunOptions options = runs.options("a");
  options.schedule.kind = ScheduleKind::constant;
  options.steps = 60;
  options.spike = {.policy = SpikePolicy::warn, .z_score = 4, .window = 20};
  runs.train(options);
  options.steps = 200;
  options.spike.policy = SpikePolicy::skip;
  options.model.logit_soft_cap = 0.1;  // the model forgets nearly all it knows
  options.resume = true;
  const std::string error = runs.error_of(options);
  EXPECT_EQ(error.substr(0, 18), "stop job: step 81:") << error;
  EXPECT_NE(error.find("20 steps before, and all were skipped"), std::string::npos) << error;
  EXPECT_NE(progress(options, 81).find("optimizer_step 60\n"), std::string::npos);
}

// The scale grows so far after two steps that the third overflows, and comes back at once.
TEST_F(Training, Overflow_P38_IsSkippedAndCountedAndLowersTheScaleOnce) {
  RunOptions options = runs.options("a");
  options.compile.precision = Precision::fp16;
  options.checkpoint = {.every = 1, .keep = 100};
  options.loss_scale = {.initial = 1024,
                        .growth_factor = 0x1p30,
                        .backoff_factor = 0x1p-30,
                        .growth_interval = 2,
                        .minimum = 1};
  runs.train(options);
  const auto skipped = runs.metric(options, "skipped"), count = runs.metric(options, "skipped_steps"),
             scale = runs.metric(options, "loss_scale"), norm = runs.metric(options, "gradient_norm"),
             loss = runs.metric(options, "loss"), event = runs.metric(options, "event");
  ASSERT_EQ(skipped.size(), 10u);
  for (int64_t step = 1; step <= 10; ++step) {
    const auto i = static_cast<size_t>(step - 1);
    const bool overflow = step % 3 == 0;
    EXPECT_EQ(skipped[i], overflow ? "true" : "false") << step;
    EXPECT_EQ(count[i], std::to_string(step / 3)) << step;
    EXPECT_EQ(std::stod(scale[i]), overflow ? 0x1p40 : 1024) << step;
    EXPECT_EQ(norm[i].find("Infinity") != std::string::npos || norm[i].find("NaN") != std::string::npos,
              overflow)
        << step << " " << norm[i];
    EXPECT_TRUE(std::isfinite(std::stod(loss[i]))) << step;
    EXPECT_EQ(event[i].find("gradient overflow") != std::string::npos, overflow) << event[i];
    if (step > 1) {
      const std::string changed = differences(tensors(options, step - 1), tensors(options, step));
      EXPECT_EQ(changed.empty(), overflow) << step << " " << changed;
    }
    EXPECT_NE(progress(options, step).find(fmt::format("optimizer_step {}\n", step - step / 3)),
              std::string::npos);
  }
  EXPECT_NE(runs.screen().find("3 of 10 steps were skipped"), std::string::npos) << runs.screen();
}

// Where the scale cannot be lowered the run ends, and what was saved stays.
TEST_F(Training, Overflow_P38_AtTheLeastScaleStopsTheRun) {
  RunOptions options = runs.options("a");
  options.compile.precision = Precision::fp16;
  options.schedule.kind = ScheduleKind::constant;
  options.loss_scale = {
      .initial = 1024, .growth_factor = 0x1p30, .backoff_factor = 0.5, .growth_interval = 4};
  options.steps = 3;
  runs.train(options);
  const auto saved = runs.checkpoint(options, 3);
  options.steps = 10;
  options.loss_scale.minimum = 0x1p40;
  options.loss_scale.initial = 0x1p40;
  options.resume = true;
  const std::string error = runs.error_of(options);
  EXPECT_EQ(error.substr(0, 17), "stop job: step 5:") << error;
  EXPECT_NE(error.find("the loss scale is at its minimum of 1.09951e+12, loss_scale.minimum"),
            std::string::npos)
      << error;
  EXPECT_NE(error.find("first tensor with it is"), std::string::npos) << error;
  EXPECT_EQ(runs.checkpoints(options), std::vector<int64_t>{3});
  EXPECT_EQ(differences(saved, runs.checkpoint(options, 3)), "");
}

TEST_F(Training, ALossThatIsNotFinite_P103_StopsWithStepAndTensor) {
  RunOptions options = runs.options("wild");
  options.steps = 50;
  options.schedule = {.kind = ScheduleKind::constant, .rate = 1e4, .minimum_rate = 0, .warmup_samples = 0};
  options.compile.optimizer.kind = OptimizerKind::sgd;
  options.compile.optimizer.maximum_norm = 0;
  options.checkpoint = {.every = 1, .keep = 100};
  const std::string error = runs.error_of(options);
  const auto steps = static_cast<int64_t>(runs.metrics(options).size());
  EXPECT_EQ(error.substr(0, 10), "stop job: ") << error;
  EXPECT_LT(steps, 50);
  const bool at_the_step = error.find(fmt::format("step {}: the loss is", steps + 1)) != std::string::npos &&
                           error.find("the first tensor with it is ") != std::string::npos;
  const bool at_the_save = error.find(fmt::format("step {}: the update gave", steps)) != std::string::npos;
  EXPECT_TRUE(at_the_step || at_the_save) << error;
  EXPECT_EQ(error.find("-nan"), std::string::npos) << error;  // the sign of a NaN means nothing
  // Nothing of that step was written, and what was saved before is sound.
  EXPECT_EQ(runs.checkpoints(options).size(), static_cast<size_t>(at_the_step ? steps : steps - 1));
  for (const std::string& loss : runs.metric(options, "loss")) EXPECT_NE(loss, "\"NaN\"");
  const auto last = tensors(options, runs.checkpoints(options).back());
  for (const auto& [name, bytes] : last) {
    for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
      float value = 0;
      std::memcpy(&value, bytes.data() + i, sizeof value);
      ASSERT_TRUE(std::isfinite(value)) << name;
    }
  }
}

// A NaN in the middle of a sound run.
TEST_F(Training, ABadWeightInACheckpoint_P103_IsNamed) {
  RunOptions options = runs.options("a");
  options.schedule.kind = ScheduleKind::constant;
  options.steps = 4;
  runs.train(options);
  const std::string path = runs.checkpoint_path(options, 4);
  const Checkpoint checkpoint = Checkpoint::open(system_files(), path);
  std::vector<std::vector<std::byte>> contents;
  std::vector<TensorTarget> targets;
  contents.reserve(checkpoint.tensors().size());
  for (const SafetensorsEntry& entry : checkpoint.tensors()) {
    contents.emplace_back(static_cast<size_t>(entry.bytes()));
    targets.push_back({entry.name, *entry.dtype, entry.shape, contents.back()});
  }
  checkpoint.load(targets, LoadMode::strict);
  std::vector<TensorBytes> tensors;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (targets[i].name == "block.1.mlp.up.weight") {
      const float bad = std::numeric_limits<float>::quiet_NaN();
      std::memcpy(contents[i].data() + 28, &bad, sizeof bad);
    }
    tensors.push_back({targets[i].name, targets[i].dtype, targets[i].shape, contents[i]});
  }
  system_files().remove(path);
  CheckpointFolder(system_files(), runs.path(options, "checkpoints"), {})
      .save(4, tensors, checkpoint.state());
  options.resume = true;
  options.steps = 6;
  const std::string error = runs.error_of(options);
  EXPECT_EQ(error.substr(0, 12), "user error: ") << error;
  EXPECT_NE(error.find("block.1.mlp.up.weight (element 7)"), std::string::npos) << error;
  EXPECT_EQ(runs.metrics(options).size(), 4u);
}

TEST_F(Training, DumpsTensorsOfAStep) {
  RunOptions options = runs.options("a");
  options.batch.batch = 4;
  options.checkpoint = {.every = 1, .keep = 100};
  options.dump = {{"block.1.attention.key.weight", "token_ids", "loss", "learning_rate_that_is_none"}, 4};
  EXPECT_NE(runs.error_of(options).find(
                "user error: debug.dump: the program has no tensor \"learning_rate_that_is_none\""),
            std::string::npos);
  EXPECT_FALSE(exists(options, "config.toml"));
  options.dump.names.pop_back();
  options.dump.step = 11;
  EXPECT_NE(runs.error_of(options).find("user error: debug.dump_step 11 is behind the last step, 10"),
            std::string::npos);
  options.dump.step = 4;
  runs.train(options);
  EXPECT_NE(runs.screen().find("dumped 7 tensors to "), std::string::npos) << runs.screen();
  const auto file = SafetensorsFile::open(system_files(), runs.path(options, "dump/step_4.safetensors"));
  const SafetensorsEntry* weight = file.find("block.1.attention.key.weight.micro_batch.1");
  ASSERT_NE(weight, nullptr);
  std::string bytes(static_cast<size_t>(weight->bytes()), ' ');
  file.read(*weight, std::as_writable_bytes(std::span(bytes)));
  EXPECT_TRUE(bytes ==
              runs.checkpoint(options, 3).at("block.1.attention.key.weight"));  // that step 4 began with
  ASSERT_NE(file.find("token_ids.micro_batch.0"), nullptr);
  EXPECT_EQ(file.find("token_ids.micro_batch.0")->shape, (std::vector<int64_t>{2, 16}));
  EXPECT_NE(file.find("loss"), nullptr);
  // Looking has changed nothing.
  RunOptions plain = options;
  plain.name = "plain";
  plain.dump.names.clear();
  runs.train(plain);
  EXPECT_EQ(differences(runs.checkpoint(plain, 10), runs.checkpoint(options, 10)), "");
}

TEST_F(Training, WritesWhatARunFolderHolds) {
  RunOptions options = runs.options("a");
  options.data.validation = {{"other", options.data.train}};
  options.validation.samples = 2;
  runs.train(options);
  EXPECT_EQ(runs.text(options, "config.toml"), "# configuration\n");
  std::istringstream stream(runs.text(options, "metrics.jsonl"));
  int64_t step = 0;
  for (std::string line; std::getline(stream, line);) {
    const auto object = nlohmann::json::parse(line);
    EXPECT_EQ(object.at("step"), ++step);
    EXPECT_TRUE(object.at("loss").is_number());
    EXPECT_EQ(object.at("consumed_tokens"), step * 32);
  }
  EXPECT_EQ(step, 10);
  EXPECT_NE(runs.text(options, "loss.svg").find("<svg"), std::string::npos);
  bool events = false;
  for (const std::string& name : system_files().list(options.run_folder())) {
    events |= name.starts_with("events.out.tfevents.");
  }
  EXPECT_TRUE(events);
  for (const char* part :
       {"10/10", "other: loss", "embedding.token.weight", "samples an epoch", "memory: ", "saved "}) {
    EXPECT_NE(runs.screen().find(part), std::string::npos) << part << "\n" << runs.screen();
  }
}

// Hidden 8, 2 layers, gated MLP 24, 4 query and 2 key/value heads, vocabulary 32, 16 tokens, window 4.
TEST_F(Training, Utilisation_P109_IsTheHandCountOverThePeak) {
  RunOptions options = runs.options("a", "llama");
  options.model.layers = 2;
  options.model.width = 8;
  options.model.heads = 4;
  options.model.key_value_heads = 2;
  options.model.feed_forward = 24;
  options.model.vocabulary = 32;
  options.model.window = 4;
  options.batch.batch = 6;  // three micro-batches
  options.data.train = runs.folder().path("ids.tokens");
  write_token_file(system_files(), options.data.train, {.vocabulary_size = 32}, [](TokenFileWriter& out) {
    std::vector<int32_t> ids;
    for (int i = 0; i < 500; ++i) ids.push_back(i * i % 31);
    out.append(ids);
    out.end_document();
  });
  runs.train(options);
  // A layer: norms 2 * 8; query and output 8 * 8 each, key and value 4 * 8 each, gate, up and down 24 * 8
  // each.
  const int64_t layer = 2 * 8 + 2 * 64 + 2 * 32 + 3 * 192;
  EXPECT_EQ(layer, 784);
  // Two of them, the final norm and the head 32 * 8; the input embedding is a table, not a product.
  const int64_t counted = 2 * layer + 8 + 256;
  EXPECT_EQ(parameter_count(options.model).counted(), counted);
  EXPECT_EQ(parameter_count(options.model).total, counted + 256);
  // 6 N, and 12 L d S for attention to all 16 tokens.
  const double literature = 6.0 * static_cast<double>(counted) + 12 * 2 * 8 * 16;
  EXPECT_EQ(literature, 14064);
  EXPECT_EQ(literature_flops_per_token(options.model, 16), literature);
  // What is computed, of a sample: products of 2 FLOPs a weight and token, forward and twice that backward;
  // the visible pairs 1 + 2 + 3 + 13 * 4 = 58 of 4 heads of 2, two products forward, five backward.
  const double computed = 3 * (2 * (2 * 64 + 2 * 32 + 3 * 192) + 256) * 2.0 * 16 + 7 * 2 * (58 * 4 * 2 * 2);
  const auto mfu = runs.metric(options, "mfu"), blocks = runs.metric(options, "mfu_computed_blocks"),
             seconds = runs.metric(options, "step_seconds");
  ASSERT_EQ(mfu.size(), 10u);
  for (size_t i = 0; i < mfu.size(); ++i) {
    const double peak = TrainingRuns::peak_gflops * 1e9 * std::stod(seconds[i]);
    EXPECT_NEAR(std::stod(mfu[i]), 6 * 16 * literature / peak, 1e-9);
    EXPECT_NEAR(std::stod(blocks[i]), 6 * computed / peak, 1e-9);
    EXPECT_LT(std::stod(blocks[i]), 1);
  }
  EXPECT_NE(runs.screen().find("peak: 100 GFLOP/s, given"), std::string::npos) << runs.screen();
  // The weights outside of matrices and the head, and the window: no more is computed than what is counted.
  EXPECT_LT(computed, 16 * literature);

  // A peak that was measured too low gives way to what steps reach.
  options.name = "low-peak";
  EXPECT_EQ(
      runs.train_on_ranks(
          options, [](int, RunOptions&, TrainContext& context) { context.peak = MatrixPeak{1e-6, "given"}; }),
      std::vector<std::string>{""});
  const auto raised = runs.metric(options, "mfu"), full = runs.metric(options, "mfu_computed_blocks");
  ASSERT_EQ(full.size(), 10u);
  EXPECT_NEAR(std::stod(full[0]), 1, 1e-9);
  for (size_t i = 0; i < full.size(); ++i) {
    EXPECT_LE(std::stod(full[i]), 1);
    EXPECT_NEAR(std::stod(raised[i]), std::stod(full[i]) * 16 * literature / computed, 1e-9);
  }
}

TEST_F(Training, DataIsToldAndShortDataRefused_P54_P55_) {
  RunOptions options = runs.options("a");
  // A text ends with an end of text.
  options.data.train = file("short.txt", std::string(15, 'x'));
  EXPECT_NE(runs.error_of(options).find("16 tokens"), std::string::npos);
  options.data.train = file("enough.txt", std::string(16, 'x'));
  options.data.max_epochs = 19;
  EXPECT_NE(runs.error_of(options).find("20 epochs"), std::string::npos);
  EXPECT_FALSE(exists(options, "config.toml"));
  options.data.max_epochs = 0;
  EXPECT_EQ(runs.error_of(options), "");
  for (const char* part : {"1 document,", "17 tokens", "1 sample an epoch", "20 epochs"}) {
    EXPECT_NE(runs.screen().find(part), std::string::npos) << part << "\n" << runs.screen();
  }
}

// The disk fills up while a checkpoint is written.
TEST(TrainingDisk, FullWhileSavingKeepsWhatWasThere) {
  int64_t bytes = 0;
  {
    TrainingRuns runs;
    RunOptions options = runs.options("a");
    options.schedule.kind = ScheduleKind::constant;
    options.steps = 4;
    runs.train(options);
    bytes = system_files().status(runs.checkpoint_path(options, 4))->size;
  }
  for (const bool announced : {false, true}) {
    FaultyFileEnvironment files(system_files(), {.disk_bytes = bytes * 9 / 5, .announce_full = announced});
    TrainingRuns runs(files);
    RunOptions options = runs.options("a");
    options.schedule.kind = ScheduleKind::constant;
    options.checkpoint = {.every = 4, .keep = 100};
    const std::string error = runs.error_of(options);
    EXPECT_EQ(error.substr(0, 12), "user error: ") << error;
    EXPECT_NE(error.find("step_00000008"), std::string::npos) << error;
    EXPECT_NE(error.find("hint: "), std::string::npos) << error;
    EXPECT_EQ(runs.checkpoints(options), std::vector<int64_t>{4});
    EXPECT_EQ(runs.metrics(options).size(), 8u);
    // With room again the run goes on from there, and becomes what it would have been.
    TrainingRuns roomy;
    RunOptions whole = options;
    whole.name = "whole";
    roomy.train(whole);
    options.resume = true;
    roomy.train(options);
    EXPECT_EQ(roomy.metrics(options), roomy.metrics(whole));
    EXPECT_EQ(differences(roomy.checkpoint(whole, 10), roomy.checkpoint(options, 10)), "");
  }
}

// The process ends at any place at which a file changes; by turns the machine lives on, or loses its power
// and with it whatever was not synced.
TEST(TrainingDisk, KilledAnywhereGoesOn) {
  const auto choose = [](RunOptions options) {
    options.schedule.kind = ScheduleKind::constant;
    options.model.layers = 1;
    options.steps = 5;
    options.checkpoint = {.every = 2, .keep = 1};
    return options;
  };
  MemoryFileEnvironment memory;
  FaultyFileEnvironment log(memory, {});
  TrainingRuns expected(log);
  const auto before = static_cast<int64_t>(log.log().size());
  const RunOptions whole = choose(expected.options("whole"));
  expected.train(whole);
  const auto places = static_cast<int64_t>(log.log().size());
  const auto metrics = expected.metrics(whole);
  const auto checkpoint = expected.checkpoint(whole, 5);
  ASSERT_GT(places, before + 50);
  for (int64_t place = before; place < places; place += 3) {
    for (const CrashLoss loss : {CrashLoss::nothing, CrashLoss::everything_not_synced}) {
      MemoryFileEnvironment disk;
      FaultyFileEnvironment files(disk, {.kill_at = place, .tear = true});
      TrainingRuns killed(files);
      const RunOptions options = choose(killed.options("whole"));
      EXPECT_THROW(killed.train(options), ProcessKilled) << place;
      disk.crash(loss);
      TrainingRuns again(disk);  // on the same files
      again.resume(options);
      const std::string where = fmt::format("{}: {}", place, log.log()[static_cast<size_t>(place)]);
      EXPECT_EQ(again.metrics(options), metrics) << where;
      EXPECT_EQ(differences(checkpoint, again.checkpoint(options, 5)), "") << where;
    }
  }
}

}  // namespace
}  // namespace athanor
