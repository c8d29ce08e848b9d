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
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <fstream>
#include <new>
#include <nlohmann/json.hpp>
#include <thread>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/run_options.h"
#include "athanor/comm/communicator.h"
#include "athanor/comm/host_transport.h"
#include "athanor/train/engine.h"
#include "random_batch.h"

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

// What the processes share to find each other and to hand in what they measured.
struct Meeting {
  std::array<std::array<char, 512>, most_ranks> addresses{};
  std::array<std::atomic<int>, most_ranks> have_address{};
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

void run_rank(int rank, int ranks, EngineOptions options, const Arguments& arguments, Meeting& meeting) {
  std::unique_ptr<HostEndpoint> endpoint;
  std::unique_ptr<Communicator> communicator;
  if (ranks > 1) {
    endpoint = std::make_unique<HostEndpoint>(
        HostTransportOptions{.rank = rank, .ranks = ranks, .secret = Secret("benchmark")});
    const std::string own = to_text(endpoint->address());
    std::strncpy(meeting.addresses[static_cast<size_t>(rank)].data(), own.c_str(), 511);
    meeting.have_address[static_cast<size_t>(rank)] = 1;
    communicator = make_communicator(endpoint->connect([&meeting](int peer) {
      const auto at = static_cast<size_t>(peer);
      while (meeting.have_address[at] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return parse_host_address(meeting.addresses[at].data());
    }),
                                     {});
    options.communicator = communicator.get();
  }
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
  std::sort(seconds.begin(), seconds.end());
  if (rank == 0) meeting.step_seconds = seconds[seconds.size() / 2];
  const auto at = static_cast<size_t>(rank);
  meeting.planned_bytes[at] = engine.planned_bytes();
  const MemoryReport report =
      memory_report(engine.programs().programs[0], engine.programs().persistent_bytes);
  for (const BufferClass kind : {BufferClass::master_weights, BufferClass::working_weights,
                                 BufferClass::gradients, BufferClass::optimizer_state})
    meeting.state_bytes[at] += report.peak_bytes[static_cast<size_t>(kind)];
  ++meeting.finished;
  while (meeting.finished < ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  meeting.proportional_bytes[at] = proportional_set_size();
  ++meeting.finished;
  while (meeting.finished < 2 * ranks) std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

struct Measured {
  double step_seconds = 0;
  int64_t proportional_bytes = 0, planned_bytes = 0, state_bytes = 0;  // the most of any rank
};

Measured measure(const Arguments& arguments, const std::string& layout, int ranks) {
  void* const shared =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw_user_error("no shared memory");
  auto& meeting = *new (shared) Meeting{};
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    int code = 0;
    try {
      run_rank(rank, ranks, engine_options(arguments, layout, ranks), arguments, meeting);
    } catch (const Error& error) {
      fmt::print(stderr, "{}\n", error.what());
      code = 1;
    }
    std::_Exit(code);
  }
  bool failed = false;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    failed = failed || status != 0;
  }
  if (failed) throw_user_error("a rank failed");
  Measured result;
  result.step_seconds = meeting.step_seconds;
  result.proportional_bytes = *std::ranges::max_element(meeting.proportional_bytes);
  result.planned_bytes = *std::ranges::max_element(meeting.planned_bytes);
  result.state_bytes = *std::ranges::max_element(meeting.state_bytes);
  munmap(shared, sizeof(Meeting));
  return result;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int bench(const Arguments& arguments) {
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
  return 0;
}

}  // namespace
}  // namespace athanor

int main(int count, char** values) {
  athanor::Arguments arguments;
  CLI::App app("Times training steps of two ranks beside one.");
  app.add_option("--model", arguments.model, "name in configs/models");
  app.add_option("--precision", arguments.precision, "fp32, bf16");
  app.add_option("--layout", arguments.layouts, "replica, zero1, zero2, zero3, tensor")
      ->check(CLI::IsMember({"replica", "zero1", "zero2", "zero3", "tensor"}));
  app.add_option("--sequence", arguments.sequence, "tokens of a sample");
  app.add_option("--micro-batch", arguments.micro_batch, "samples of a step, even");
  app.add_option("--steps", arguments.steps, "timed steps")->check(CLI::PositiveNumber);
  app.add_option("--rounds", arguments.rounds, "pairs of measurements")->check(CLI::PositiveNumber);
  app.add_flag("--json", arguments.json, "a JSON array");
  CLI11_PARSE(app, count, values);
  try {
    return athanor::bench(arguments);
  } catch (const athanor::Error& error) {
    fmt::print(stderr, "bench: {}\n", error.what());
    return 2;
  }
}
