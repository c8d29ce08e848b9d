// Speed of training steps on two ranks (processes of this host, one thread each) beside one rank with two
// threads, in turns; and what the ranks' memory is beside the plan.
//
//   bench_ranks [--model NAME] [--layout replica|zero1|zero2|zero3|tensor ...] [--steps N] [--rounds N]
//               [--micro-batch N] [--sequence N] [--json]
//
// The samples of a step are the same in all layouts: data ranks have half of the micro-batch each. `speed` is
// the time of one rank over that of two, the median of pairs. Memory is the proportional set size after the
// steps, with pages that ranks share counted once among them.
#include <fmt/core.h>
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_options.h"
#include "athanor/comm/process_ranks.h"
#include "athanor/train/engine.h"
#include "support/median.h"
#include "support/options.h"
#include "support/random_batch.h"

namespace athanor {
namespace {

constexpr int most_ranks = 2;

struct Arguments {
  std::string model = "gpt2-124m", precision = "fp32";
  std::vector<std::string> layouts{"replica", "zero1", "zero2", "zero3", "tensor"};
  int64_t sequence = 1024, micro_batch = 4, steps = 2;
  int rounds = 3;
  bool json = false;
};

// What the processes hand in, in memory that they share.
struct Results {
  std::atomic<int> finished{0};
  double step_seconds = 0;
  std::array<int64_t, most_ranks> proportional_bytes{}, planned_bytes{}, state_bytes{};
};

int64_t proportional_set_size() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    int64_t kilobytes = 0;
    if (word == "Pss:" && file >> kilobytes) return kilobytes * 1024;
  }
  return 0;
}

EngineOptions engine_options(const Arguments& arguments, const std::string& layout, int ranks) {
  RunConfiguration run;
  load_options(run.table, system_files(),
               {"",
                {"model.base=" + arguments.model, "train.precision=" + arguments.precision},
                model_configuration_folders()});
  EngineOptions options;
  options.model = run.options.model;
  options.model.maximum_positions = std::max(options.model.maximum_positions, arguments.sequence);
  options.compile = run.options.compile;
  options.threads = 2 / ranks;
  options.seed = 1;
  options.sequence_length = arguments.sequence;
  options.micro_batch = arguments.micro_batch;
  if (ranks == 1) return options;
  const auto set = [&](Axis axis) {
    options.compile.layout.mesh.sizes[static_cast<size_t>(axis)] = ranks;
    if (axis != Axis::tensor) options.micro_batch = arguments.micro_batch / ranks;
  };
  if (layout == "replica") {
    set(Axis::replica);
  } else if (layout == "tensor") {
    set(Axis::tensor);
  } else {
    set(Axis::shard);
    options.compile.zero_stage = layout.back() - '0';
  }
  return options;
}

void run_rank(int rank, int ranks, EngineOptions options, const Arguments& arguments,
              Communicator& communicator, Results& results) {
  if (ranks > 1) options.communicator = &communicator;
  Engine engine(options);
  engine.allocate();
  engine.initialise();
  std::vector<double> seconds;
  for (int64_t step = 0; step <= arguments.steps; ++step) {  // the first warms caches and pages
    const Batch batch = random_batch(options.model, options.micro_batch, options.sequence_length,
                                     static_cast<uint64_t>(step));
    const int64_t begin = monotonic_ns();
    engine.train_step({&batch, 1}, step, step, 3e-4);
    if (step > 0) seconds.push_back(seconds_of(monotonic_ns() - begin));
  }
  if (rank == 0) results.step_seconds = median(seconds);
  const auto at = static_cast<size_t>(rank);
  results.planned_bytes[at] = engine.planned_bytes();
  const MemoryReport report =
      memory_report(engine.programs().programs[0], engine.programs().persistent_bytes);
  for (const BufferClass kind : {BufferClass::master_weights, BufferClass::working_weights,
                                 BufferClass::gradients, BufferClass::optimizer_state})
    results.state_bytes[at] += report.peak_bytes[static_cast<size_t>(kind)];
  ++results.finished;
  while (results.finished < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  results.proportional_bytes[at] = proportional_set_size();
  ++results.finished;
  while (results.finished < 2 * ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

struct Measured {
  double step_seconds = 0;
  int64_t proportional_bytes = 0, planned_bytes = 0, state_bytes = 0;  // the most of any rank
};

Measured measure(const Arguments& arguments, const std::string& layout, int ranks) {
  void* const shared =
      mmap(nullptr, sizeof(Results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw_user_error("no shared memory");
  auto& results = *new (shared) Results{};
  ProcessRanks processes(
      ranks, [](int, HostTransportOptions&, CommunicatorOptions& options) { options = {}; },
      [&](int rank, Communicator& communicator, Meeting&) {
        run_rank(rank, ranks, engine_options(arguments, layout, ranks), arguments, communicator, results);
      });
  for (int rank = 0; rank < ranks; ++rank) {
    if (const std::string problem = processes.wait_for(rank); !problem.empty())
      throw_user_error(fmt::format("rank {}: {}", rank, problem));
  }
  const Measured measured{results.step_seconds, *std::ranges::max_element(results.proportional_bytes),
                          *std::ranges::max_element(results.planned_bytes),
                          *std::ranges::max_element(results.state_bytes)};
  munmap(shared, sizeof(Results));
  return measured;
}

void bench(const Arguments& arguments) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const std::string& layout : arguments.layouts) {
    std::vector<double> speeds, one_times, two_times;
    Measured one, two;
    for (int round = 0; round < arguments.rounds; ++round) {
      one = measure(arguments, layout, 1);
      two = measure(arguments, layout, 2);
      one_times.push_back(one.step_seconds);
      two_times.push_back(two.step_seconds);
      speeds.push_back(one.step_seconds / two.step_seconds);
    }
    nlohmann::ordered_json row;
    row["layout"] = layout;
    row["speed"] = median(speeds);
    row["speeds"] = speeds;
    row["one_rank_seconds"] = median(one_times);
    row["two_ranks_seconds"] = median(two_times);
    row["rank_resident_bytes"] = two.proportional_bytes;
    row["rank_planned_bytes"] = two.planned_bytes;
    row["resident_over_planned"] =
        static_cast<double>(two.proportional_bytes) / static_cast<double>(two.planned_bytes);
    row["state_share"] = static_cast<double>(two.state_bytes) / static_cast<double>(one.state_bytes);
    if (!arguments.json) fmt::print("{}\n", row.dump());
    rows.push_back(std::move(row));
  }
  if (arguments.json) fmt::print("{}\n", rows.dump(1));
}

}  // namespace
}  // namespace athanor

int main(int count, char** values) {
  athanor::Arguments arguments;
  athanor::BenchmarkOptions options("Times training steps of two ranks beside one.");
  options.text("--model", arguments.model, "name in configs/models");
  options.text("--precision", arguments.precision, "of the model", {"fp32", "bf16"});
  options.text("--layout", arguments.layouts, "of the two ranks",
               {"replica", "zero1", "zero2", "zero3", "tensor"});
  options.number("--sequence", arguments.sequence, 1, 1 << 30, "tokens of a sample");
  options.number("--micro-batch", arguments.micro_batch, 2, 1 << 20, "samples of a step, even");
  options.number("--steps", arguments.steps, 1, 1 << 20, "timed steps");
  options.number("--rounds", arguments.rounds, 1, 1 << 20, "pairs of measurements");
  options.flag("--json", arguments.json, "a JSON array");
  return options.run(count, values, [&] { athanor::bench(arguments); });
}
