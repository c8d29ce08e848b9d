// Collectives between four processes of this machine: time of each operation on 4 KiB and 16 MiB, beside the
// time that copying its bytes takes at the speed of the machine's memory, and beside OpenMPI where it is
// installed (bench_collectives_mpi), measured in turns.
//
// 4 KiB and 16 MiB are what the operation is about: the whole vector of a reduction, the gathered output, the
// input of an exchange, the message.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/process_ranks.h"
#include "athanor/device/cpu_device.h"
#include "support/median.h"
#include "support/options.h"

namespace {

using namespace athanor;

constexpr int ranks = 4;
constexpr std::array<int64_t, 2> sizes = {4 << 10, 16 << 20};
constexpr std::array<CollectiveKind, 6> kinds = {CollectiveKind::all_reduce, CollectiveKind::reduce_scatter,
                                                 CollectiveKind::all_gather, CollectiveKind::all_to_all,
                                                 CollectiveKind::broadcast,  CollectiveKind::send};

int enqueued(int64_t bytes) {
  return bytes > (1 << 20) ? 10 : 2000;
}

using Microseconds = std::array<double, kinds.size() * sizes.size()>;

CollectiveSpec spec_of(CollectiveKind kind, int64_t bytes, int rank) {
  CollectiveSpec spec;
  spec.kind = kind;
  const int64_t count = bytes / 4;
  const bool blocks = kind == CollectiveKind::all_gather || kind == CollectiveKind::reduce_scatter ||
                      kind == CollectiveKind::all_to_all;
  spec.counts = blocks ? std::vector<int64_t>(ranks, count / ranks) : std::vector<int64_t>{count};
  if (kind == CollectiveKind::all_to_all) spec.receive_counts = spec.counts;
  if (kind == CollectiveKind::send && rank == 1) {
    spec.kind = CollectiveKind::receive;
    spec.root = 0;
  } else if (kind == CollectiveKind::send) {
    spec.root = 1;
  }
  return spec;
}

// One rank measures everything once.
void run_rank(int rank, Communicator& communicator, Microseconds& microseconds, bool private_buffers) {
  std::vector<int> all(ranks);
  std::iota(all.begin(), all.end(), 0);
  communicator.add_group({0, "all", all});
  CpuDevice device;
  Stream& stream = device.create_stream("communication", 1);
  const int64_t most = sizes.back();
  const auto memory = [&](int64_t bytes) {
    return private_buffers ? device.allocate(bytes) : communicator.allocate(bytes);
  };
  const auto input = memory(most), output = memory(most);
  std::memset(input.get(), 0, static_cast<size_t>(most));
  std::memset(output.get(), 0, static_cast<size_t>(most));

  Collective barrier{.group = 0, .input = input.get(), .output = input.get()};
  barrier.spec.counts = {1};
  const auto prepared_barrier = communicator.prepare(barrier);
  size_t row = 0;
  for (const CollectiveKind kind : kinds)
    for (const int64_t bytes : sizes) {
      Collective collective{.group = 0, .input = input.get(), .output = output.get()};
      collective.spec = spec_of(kind, bytes, rank);
      if (kind == CollectiveKind::all_reduce || kind == CollectiveKind::broadcast)
        collective.output = input.get();
      const bool idle = kind == CollectiveKind::send && rank > 1;
      const auto prepared = idle ? nullptr : communicator.prepare(collective);
      double seconds = 0;
      for (const int count : {std::max(1, enqueued(bytes) / 10), enqueued(bytes)}) {
        communicator.start(*prepared_barrier, stream);
        stream.synchronize();
        const int64_t begin = monotonic_ns();
        for (int i = 0; i < count && !idle; ++i) communicator.start(*prepared, stream);
        stream.synchronize();
        communicator.start(*prepared_barrier, stream);  // the slowest counts
        stream.synchronize();
        seconds = static_cast<double>(monotonic_ns() - begin) * 1e-9 / count;
      }
      if (rank == 0) microseconds[row] = seconds * 1e6;
      ++row;
    }
}

Microseconds measure(bool private_buffers) {
  void* const shared =
      mmap(nullptr, sizeof(Microseconds), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw_user_error("no shared memory");
  auto& microseconds = *new (shared) Microseconds{};
  ProcessRanks processes(
      ranks, [](int, HostTransportOptions&, CommunicatorOptions& options) { options = {}; },
      [&](int rank, Communicator& communicator, Meeting&) {
        run_rank(rank, communicator, microseconds, private_buffers);
      });
  for (int rank = 0; rank < ranks; ++rank) {
    if (const std::string problem = processes.wait_for(rank); !problem.empty())
      throw_user_error(fmt::format("rank {}: {}", rank, problem));
  }
  const Microseconds result = microseconds;
  munmap(shared, sizeof(Microseconds));
  return result;
}

// Bytes that must be read and written by all ranks together if every one is touched once.
double bytes_touched(CollectiveKind kind, double bytes) {
  constexpr double n = ranks;
  switch (kind) {
    case CollectiveKind::all_reduce:  // read all inputs, write all outputs
      return 2 * n * bytes;
    case CollectiveKind::reduce_scatter:
      return n * bytes + bytes;
    case CollectiveKind::all_gather:  // each rank copies the whole
      return 2 * n * bytes;
    case CollectiveKind::all_to_all:
      return 2 * n * bytes;
    case CollectiveKind::broadcast:
      return 2 * (n - 1) * bytes;
    default:
      return 2 * bytes;
  }
}

// Read and written bytes per second of two threads that copy between buffers of 16 MiB.
double copy_bytes_per_second() {
  constexpr size_t bytes = 16 << 20;
  constexpr int rounds = 20;
  std::atomic<int> ready{0};
  std::array<double, 2> rates{};
  const int threads = std::min(2, available_cores());
  std::vector<std::thread> team;
  for (int thread = 0; thread < threads; ++thread)
    team.emplace_back([&, thread] {
      std::vector<char> from(bytes, 1), to(bytes, 2);
      ++ready;
      while (ready < threads) std::this_thread::yield();
      const int64_t begin = monotonic_ns();
      for (int i = 0; i < rounds; ++i)
        std::memcpy(to.data(), from.data(), bytes - static_cast<size_t>(i % 2));
      rates[static_cast<size_t>(thread)] =
          2.0 * bytes * rounds / (static_cast<double>(monotonic_ns() - begin) * 1e-9);
    });
  for (auto& thread : team) thread.join();
  return rates[0] + rates[1];
}

using Times = std::map<std::pair<std::string, int64_t>, std::vector<double>>;

// Adds what the program for OpenMPI prints: operation, bytes, microseconds.
void measure_openmpi(const std::string& program, Times& times) {
  const std::string command =
      "OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun --oversubscribe -n 4 '" + program +
      "' 2>/dev/null </dev/null";
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return;
  std::array<char, 64> name{};
  long long bytes = 0;
  double microseconds = 0;
  while (std::fscanf(pipe, "%63s %lld %lf", name.data(), &bytes, &microseconds) == 3)
    times[{name.data(), bytes}].push_back(microseconds);
  pclose(pipe);
}

void run(bool json, int rounds, bool private_buffers) {
  const std::filesystem::path own = std::filesystem::read_symlink("/proc/self/exe");
  const std::filesystem::path openmpi = own.parent_path() / "bench_collectives_mpi";
  Times times, openmpi_times;
  std::vector<double> rates;
  for (int round = 0; round < rounds; ++round) {
    const auto microseconds = measure(private_buffers);
    size_t row = 0;
    for (const CollectiveKind kind : kinds)
      for (const int64_t bytes : sizes)
        times[{std::string(name_of(kind)), bytes}].push_back(microseconds[row++]);
    if (std::filesystem::exists(openmpi)) measure_openmpi(openmpi.string(), openmpi_times);
    rates.push_back(copy_bytes_per_second());
  }
  const double rate = median(rates);
  std::string text = json ? "[" : "";
  if (!json)
    fmt::print("{:>16} {:>9} {:>12} {:>12} {:>12}\n", "operation", "bytes", "us", "openmpi us", "limit us");
  for (const CollectiveKind kind : kinds)
    for (const int64_t bytes : sizes) {
      const std::string name(name_of(kind));
      const double own_time = median(times[{name, bytes}]), other = median(openmpi_times[{name, bytes}]);
      const double limit = bytes_touched(kind, static_cast<double>(bytes)) / rate * 1e6;
      if (json)
        text += fmt::format(
            "{}\n  {{\"operation\": \"{}\", \"bytes\": {}, \"microseconds\": {:.2f}, "
            "\"openmpi_microseconds\": {}, "
            "\"limit_microseconds\": {:.2f}}}",
            text.size() > 1 ? "," : "", name, bytes, own_time,
            other > 0 ? fmt::format("{:.2f}", other) : "null", limit);
      else
        fmt::print("{:>16} {:>9} {:>12.2f} {:>12.2f} {:>12.2f}\n", name, bytes, own_time, other, limit);
    }
  if (json) fmt::print("{}\n]\n", text);
}

}  // namespace

int main(int count, char** values) {
  bool json = false, private_buffers = false;
  int rounds = 5;
  BenchmarkOptions options("Times collectives between four processes of this machine.");
  options.flag("--json", json, "a JSON array");
  options.number("--rounds", rounds, 1, 1 << 20, "the median of so many, in turn with OpenMPI");
  options.flag("--private", private_buffers, "buffers outside of shared memory");
  return options.run(count, values, [&] { run(json, rounds, private_buffers); });
}
