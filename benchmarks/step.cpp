// Speed and memory of a training step of one process, with where its time goes.
//
// ./run bench step --model gpt2-124m --precision bf16 [--sequence N --micro-batch N --window N --threads N
//                  --steps N --recompute none|selective|full --set a.b=c] [--json]

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "athanor/base/clock.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_options.h"
#include "athanor/machine/host.h"
#include "athanor/model/model.h"
#include "athanor/observe/format.h"
#include "athanor/observe/time_by_operation.h"
#include "athanor/train/engine.h"
#include "athanor/train/peak.h"
#include "support/options.h"
#include "support/random_batch.h"

namespace athanor {
namespace {

struct Arguments {
  std::string model = "gpt2-124m", precision = "fp32", recompute = "none";
  int64_t sequence = 0, micro_batch = 4, window = -1, steps = 5;
  int threads = 0;
  bool json = false;
  std::vector<std::string> settings;
};

void configure(RunConfiguration& run, const Arguments& arguments) {
  std::vector<std::string> settings{"model.base=" + arguments.model, "train.precision=" + arguments.precision,
                                    "train.recompute=" + arguments.recompute,
                                    fmt::format("train.micro_batch={}", arguments.micro_batch),
                                    fmt::format("train.threads={}", arguments.threads)};
  if (arguments.window >= 0) settings.push_back(fmt::format("model.window={}", arguments.window));
  settings.insert(settings.end(), arguments.settings.begin(), arguments.settings.end());
  load_options(run.table, system_files(), {"", settings, model_configuration_folders()});
  RunOptions& options = run.options;
  options.data.sequence_length =
      arguments.sequence > 0 ? arguments.sequence : std::min<int64_t>(1024, options.model.maximum_positions);
  options.model.maximum_positions = std::max(options.model.maximum_positions, options.data.sequence_length);
}

void bench(const Arguments& arguments) {
  RunConfiguration run;
  configure(run, arguments);
  const RunOptions& options = run.options;
  EngineOptions engine_options;
  engine_options.model = options.model;
  engine_options.compile = options.compile;
  engine_options.threads = options.threads;
  engine_options.seed = 1;
  engine_options.micro_batch = options.micro_batch;
  engine_options.sequence_length = options.data.sequence_length;
  Engine engine(engine_options);
  const MatrixPeak before = measure_peak(options, engine.threads());
  engine.allocate();
  engine.initialise();

  TimeByOperation times;
  std::vector<double> seconds;
  double loss = 0;
  for (int64_t step = 0; step <= arguments.steps; ++step) {  // the first warms caches and pages
    const Batch batch = random_batch(options.model, options.micro_batch, options.data.sequence_length,
                                     static_cast<uint64_t>(step));
    const int64_t begin = monotonic_ns();
    loss = engine.train_step({&batch, 1}, step, step, 3e-4).loss;
    const int64_t end = monotonic_ns();
    if (step == 0) continue;
    seconds.push_back(seconds_of(end - begin));
    times.add(engine.programs().programs.front(), engine.records(), begin, end);
  }
  const MatrixPeak after = measure_peak(options, engine.threads());
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2], peak = std::max(before.gflops, after.gflops) * 1e9;
  const auto tokens = static_cast<double>(options.micro_batch * options.data.sequence_length);
  const TimeSummary summary = times.summary();

  nlohmann::ordered_json json;
  json["model"] = arguments.model;
  json["precision"] = arguments.precision;
  json["recompute"] = arguments.recompute;
  json["sequence"] = options.data.sequence_length;
  json["micro_batch"] = options.micro_batch;
  json["window"] = options.model.window;
  json["threads"] = engine.threads();
  json["processor"] = processor_name();
  json["step_seconds"] = median;
  json["step_seconds_least"] = seconds.front();
  json["tokens_per_second"] = tokens / median;
  json["mfu"] =
      tokens * literature_flops_per_token(options.model, options.data.sequence_length) / median / peak;
  json["mfu_computed_blocks"] = cost_of(engine.programs().programs.front()).flops / median / peak;
  json["matrix_peak_gflops"] = peak / 1e9;
  json["matrix_peak_source"] = after.source;
  json["peak_resident_bytes"] = peak_resident_memory_bytes();
  json["planned_bytes"] = engine.planned_bytes();
  json["outside_kernels_share"] = summary.outside_kernels_share();
  json["time_by_operation"] = nlohmann::ordered_json::parse(seconds_by_kind_json(summary));
  json["loss"] = loss;
  if (arguments.json) {
    fmt::print("{}\n", json.dump());
    return;
  }
  for (const std::string& note : engine.programs().notes) fmt::print("{}\n", note);
  for (const auto& [key, value] : json.items()) {
    if (key != "time_by_operation") fmt::print("{:<24} {}\n", key, value.dump());
  }
  fmt::print("\n{}", to_table(summary));
}

}  // namespace
}  // namespace athanor

int main(int count, char** values) {
  athanor::Arguments arguments;
  athanor::BenchmarkOptions options("Times training steps of one process.");
  options.text("--model", arguments.model, "name in configs/models");
  options.text("--precision", arguments.precision, "of the model", {"fp32", "bf16", "fp16"});
  options.text("--recompute", arguments.recompute, "what is computed twice", {"none", "selective", "full"});
  options.number("--sequence", arguments.sequence, 0, 1 << 30,
                 "tokens of a sample; 0: 1024, or what the model has");
  options.number("--micro-batch", arguments.micro_batch, 1, 1 << 20, "samples");
  options.number("--window", arguments.window, -1, 1 << 30, "attention window; 0: full, -1: the model's");
  options.number("--steps", arguments.steps, 1, 1 << 20, "timed steps");
  options.number("--threads", arguments.threads, 0, 1 << 16, "0: all cores");
  options.text("--set", arguments.settings, "any option, NAME=VALUE");
  options.flag("--json", arguments.json, "one JSON object");
  return options.run(count, values, [&] { athanor::bench(arguments); });
}
