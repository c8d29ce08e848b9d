// Speed of generation by one token after another, against what reading the weights takes.
//
// ./run bench generate [--model gpt2-124m --context N --tokens N --threads N] [--json]
//
// For each precision: tokens a second of one sequence (the whole way: program, draw of the likeliest), and
// bandwidth_share: bytes of weights that a token reads over the time it takes, relative to the bandwidth of
// all threads reading a buffer of at least four times the last-level cache, measured before and after.

#include "athanor/train/generate.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_options.h"
#include "athanor/device/cpu_device.h"
#include "athanor/kernels/cpu/memory_peak.h"
#include "athanor/machine/host.h"
#include "support/median.h"
#include "support/options.h"

namespace athanor {
namespace {

struct Arguments {
  std::string model = "gpt2-124m";
  int64_t context = 256, tokens = 64;
  int threads = 0, rounds = 3;
  bool json = false;
};

struct Row {
  const char* name;
  Precision precision;
  std::unique_ptr<Engine> engine;
  std::vector<double> seconds;  // of a token, by round
  double weight_bytes = 0;
};

// Matrices are read whole for every token; of tables that ids look up, a row, which counts as nothing, except
// where the head is the same matrix.
double bytes_read(const ModelConfig& model, const ProgramSet& set, double element) {
  double elements = 0;
  for (const BucketTable& table : set.tables) {
    for (const BucketMember& member : table.members) {
      const bool looked_up = member.name == "embedding.position.weight" ||
                             (member.name == "embedding.token.weight" && !model.tied_head);
      if (!looked_up) elements += static_cast<double>(member.length());
    }
  }
  return elements * element;
}

// Seconds of one token behind half the context.
double time_tokens(Engine& engine, const Arguments& arguments) {
  const std::vector<std::vector<int32_t>> prompts{
      std::vector<int32_t>(static_cast<size_t>(arguments.context - arguments.tokens - 1), 11)};
  const GenerateReport report =
      generate(engine, prompts, {.length = arguments.tokens + 1, .sampling = {.temperature = 0}},
               [](size_t, int32_t) { return true; });
  return report.seconds / static_cast<double>(arguments.tokens);  // the first came with the prompt
}

void bench(const Arguments& arguments) {
  if (arguments.tokens > arguments.context - 2) throw_user_error("--tokens has no room in --context");
  std::vector<Row> rows;
  rows.push_back({"fp32", Precision::fp32, nullptr, {}});
  rows.push_back({"bf16", Precision::bf16, nullptr, {}});
  for (Row& row : rows) {
    RunConfiguration run;
    load_options(run.table, system_files(),
                 {"", {"model.base=" + arguments.model}, model_configuration_folders()});
    EngineOptions options;
    options.model = run.options.model;
    options.compile.precision = row.precision;
    options.threads = arguments.threads;
    options.micro_batch_counts.clear();
    options.generation = GenerationShape::of(1, arguments.context);
    row.engine = std::make_unique<Engine>(options);
    row.engine->allocate();
    row.engine->initialise();
    row.weight_bytes =
        bytes_read(options.model, row.engine->programs(), row.precision == Precision::fp32 ? 4 : 2);
  }
  const int threads = rows.front().engine->threads();
  ThreadTeam team(threads);
  const int64_t buffer_bytes = std::max<int64_t>(4 * last_cache_bytes(), int64_t{1} << 28);
  const std::shared_ptr<std::byte> buffer = CpuDevice().allocate(buffer_bytes);
  const std::span<std::byte> memory(buffer.get(), static_cast<size_t>(buffer_bytes));
  std::fill(memory.begin(), memory.end(), std::byte{1});
  std::vector<double> peaks;
  for (int round = 0; round < arguments.rounds; ++round) {  // in turn, so that noise meets all alike
    peaks.push_back(cpu::read_bandwidth(team, memory));
    for (Row& row : rows) row.seconds.push_back(time_tokens(*row.engine, arguments));
  }
  peaks.push_back(cpu::read_bandwidth(team, memory));
  const double bandwidth = median(peaks);
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const Row& row : rows) {
    const double seconds = median(row.seconds);
    nlohmann::ordered_json entry;
    entry["model"] = arguments.model;
    entry["precision"] = row.name;
    entry["tokens_per_second"] = 1 / seconds;
    entry["bandwidth_share"] = row.weight_bytes / seconds / bandwidth;
    entry["weight_bytes_per_token"] = row.weight_bytes;
    entry["bandwidth_bytes_per_second"] = bandwidth;
    entry["bandwidth_buffer_bytes"] = buffer_bytes;
    entry["context"] = arguments.context;
    entry["threads"] = threads;
    entry["processor"] = processor_name();
    json.push_back(std::move(entry));
  }
  if (arguments.json) {
    fmt::print("{}\n", json.dump());
    return;
  }
  for (const auto& entry : json) {
    for (const auto& [key, value] : entry.items()) fmt::print("{:<28} {}\n", key, value.dump());
    fmt::print("\n");
  }
}

}  // namespace
}  // namespace athanor

int main(int count, char** values) {
  athanor::Arguments arguments;
  athanor::BenchmarkOptions options("Times generation of one sequence.");
  options.text("--model", arguments.model, "name in configs/models");
  options.number("--context", arguments.context, 4, 1 << 20, "tokens of the whole sequence");
  options.number("--tokens", arguments.tokens, 1, 1 << 20, "tokens that are timed");
  options.number("--rounds", arguments.rounds, 1, 1 << 20, "the median of so many");
  options.number("--threads", arguments.threads, 0, 1 << 16, "0: all cores");
  options.flag("--json", arguments.json, "one JSON array");
  return options.run(count, values, [&] { athanor::bench(arguments); });
}
