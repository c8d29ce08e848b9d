#include "support/training.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "athanor/base/error.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/comm/process_ranks.h"
#include "athanor/comm/rank_threads.h"

namespace athanor {

namespace {

std::vector<nlohmann::ordered_json> objects(const std::string& text) {
  std::vector<nlohmann::ordered_json> result;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) result.push_back(nlohmann::ordered_json::parse(line));
  return result;
}

}  // namespace

TrainingRuns::TrainingRuns(FileEnvironment& files) : files_(files) {
  std::string text;
  for (int line = 0; line < 60; ++line) {
    text += fmt::format("In the beginning line {} was the word, and {} came after it.\n", line, line * line);
  }
  files_.make_directories(folder_.path());
  write_file_atomically(files_, folder_.path("text.txt"), text);
}

RunOptions TrainingRuns::options(const std::string& name, const std::string& family) const {
  RunOptions options;
  options.name = name;
  options.folder = folder_.path("runs");
  options.steps = 10;
  options.micro_batch = 2;
  options.threads = 1;
  options.model = family_defaults(family);
  options.model.layers = 2;
  options.model.width = 16;
  options.model.heads = 4;
  options.model.key_value_heads = family == "llama" ? 2 : 4;
  options.model.feed_forward = 24;
  options.model.vocabulary = 257;
  options.model.maximum_positions = 16;
  options.schedule.rate = 1e-2;
  options.data.train = folder_.path("text.txt");
  options.data.cache = folder_.path("cache");
  options.data.sequence_length = 16;
  return options;
}

TrainOutcome TrainingRuns::train(const RunOptions& options) {
  screen_.clear();
  TerminalOptions terminal_options;
  terminal_options.plain_interval_seconds = 0;
  terminal_options.event_interval_seconds = 0;
  terminal_options.total_steps = options.steps;
  Terminal terminal(
      terminal_options, [this](std::string_view bytes) { screen_ += bytes; }, [] { return 200; },
      monotonic_clock());
  TrainContext context{files_, terminal, "# configuration\n"};
  context.peak = MatrixPeak{peak_gflops, "given"};
  return athanor::train(options, context);
}

std::vector<std::string> TrainingRuns::train_on_ranks(const RunOptions& options, const PrepareRank& prepare) {
  screen_.clear();
  TerminalOptions terminal_options;
  terminal_options.plain_interval_seconds = 0;
  terminal_options.total_steps = options.steps;
  const auto nanoseconds = [](double seconds) { return static_cast<int64_t>(seconds * 1e9); };
  const CommunicatorOptions communicator_options{
      .timeout_ns = nanoseconds(options.communication.timeout_seconds),
      .patience_ns = nanoseconds(options.communication.patience_seconds),
      .hosts = {}};
  const auto work = [&](Communicator& communicator) {
    const int rank = communicator.rank();
    Terminal terminal(
        terminal_options,
        [&](std::string_view bytes) { screen_ += rank == 0 ? bytes : "another rank speaks\n"; },
        [] { return 200; }, monotonic_clock());
    TrainContext context{files_, terminal, "# configuration\n"};
    context.peak = MatrixPeak{peak_gflops, "given"};
    context.communicator = &communicator;
    context.signals = false;
    RunOptions own = options;
    if (prepare) prepare(rank, own, context);
    athanor::train(own, context);
  };
  return run_rank_threads(static_cast<int>(options.mesh().ranks()), work, communicator_options);
}

std::vector<std::string> TrainingRuns::train_on_processes(const RunOptions& options) {
  const int count = static_cast<int>(options.mesh().ranks());
  ProcessRanks ranks(
      count, [](int, HostTransportOptions&, CommunicatorOptions&) {},
      [&](int, Communicator& communicator, Meeting&) {
        Terminal terminal({}, [](std::string_view) {}, [] { return 80; }, monotonic_clock());
        TrainContext context{files_, terminal, "# configuration\n"};
        context.peak = MatrixPeak{peak_gflops, "given"};
        context.communicator = &communicator;
        athanor::train(options, context);
      });
  std::vector<std::string> errors;
  for (int rank = 0; rank < count; ++rank) errors.push_back(ranks.wait_for(rank));
  return errors;
}

TrainOutcome TrainingRuns::resume(RunOptions options) {
  options.resume = true;
  return train(options);
}

std::string TrainingRuns::error_of(const RunOptions& options) {
  try {
    train(options);
  } catch (const Error& error) {
    return fmt::format("{}: {}", name_of(error.kind()), error.what());
  }
  return "";
}

std::string TrainingRuns::text(const RunOptions& options, const std::string& file) {
  return read_file(files_, path(options, file), 1 << 24);
}

std::vector<std::string> TrainingRuns::metrics(const RunOptions& options) {
  std::vector<std::string> lines;
  for (nlohmann::ordered_json line : objects(text(options, "metrics.jsonl"))) {
    for (const char* timed :
         {"step_seconds", "tokens_per_second", "mfu", "mfu_computed_blocks", "seconds_left"}) {
      line.erase(timed);
    }
    lines.push_back(line.dump());
  }
  return lines;
}

std::vector<std::string> TrainingRuns::metric(const RunOptions& options, const std::string& member) {
  std::vector<std::string> values;
  for (const auto& line : objects(text(options, "metrics.jsonl"))) values.push_back(line.at(member).dump());
  return values;
}

std::map<std::string, std::string> TrainingRuns::checkpoint(const RunOptions& options, int64_t step) {
  const Checkpoint checkpoint = Checkpoint::open(files_, checkpoint_path(options, step));
  std::map<std::string, std::string> result;
  for (const auto& [name, value] : checkpoint.state()) result["." + name] = value;
  std::vector<TensorTarget> targets;
  for (const SafetensorsEntry& entry : checkpoint.tensors()) {
    std::string& bytes = result[entry.name];
    bytes.resize(static_cast<size_t>(entry.bytes()));
    targets.push_back({entry.name, *entry.dtype, entry.shape, std::as_writable_bytes(std::span(bytes))});
  }
  checkpoint.load(targets, LoadMode::strict);
  return result;
}

std::vector<int64_t> TrainingRuns::checkpoints(const RunOptions& options) {
  return CheckpointFolder(files_, path(options, "checkpoints"), {}).steps();
}

std::string TrainingRuns::checkpoint_path(const RunOptions& options, int64_t step) {
  return CheckpointFolder(files_, path(options, "checkpoints"), {}).path_of(step);
}

std::string differences(const std::map<std::string, std::string>& expected,
                        const std::map<std::string, std::string>& actual) {
  std::vector<std::string> names;
  for (const auto& [name, bytes] : expected) {
    const auto found = actual.find(name);
    if (found == actual.end() || found->second != bytes) names.push_back(name);
  }
  for (const auto& [name, bytes] : actual) {
    if (!expected.contains(name)) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

}  // namespace athanor
