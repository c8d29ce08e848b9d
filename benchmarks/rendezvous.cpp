// How long thousands of ranks take until each has its groups and the addresses of its peers.
//
// Ranks are simulated, their sockets are real: each has a connection of its own to the store, in a few
// processes, because one may hold no more than 20,000 descriptors. Mesh: tensor 8 (or as many ranks as there
// are), the rest shard. From the moment at which all begin to connect until the last one is ready. Beside it,
// unless --no-naive: peers/naive_store.h.
#include "athanor/cluster/rendezvous.h"

#include <fmt/core.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <memory>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/execute/collective_task.h"
#include "athanor/store/store_connection.h"
#include "athanor/store/store_server.h"
#include "peers/naive_store.h"
#include "support/options.h"

namespace {

using namespace athanor;

constexpr int most_processes = 16, ranks_per_host = 8;

struct Options {
  int ranks = 2048, processes = 2;
  double naive_limit = 60;
  bool json = false, no_naive = false;
};

struct Meeting {
  std::atomic<int> port{0}, prepared{0}, go{0}, stop{0}, failed{0};
  std::array<std::atomic<int64_t>, most_processes> ready_ns{};  // the last rank of the process
  std::atomic<int64_t> messages{0};
};

Mesh mesh_for(int ranks) {
  Mesh mesh;
  mesh.sizes[static_cast<size_t>(Axis::tensor)] = std::min(ranks, 8);
  mesh.sizes[static_cast<size_t>(Axis::shard)] = ranks / std::min(ranks, 8);
  if (mesh.ranks() != ranks) throw_user_error(fmt::format("{} ranks are no multiple of 8", ranks));
  return mesh;
}

HostAddress address_of(int rank) {
  const int host = rank / ranks_per_host;
  return {.rank = rank,
          .generation = 1,
          .host = fmt::format("{:016x}", mix64(static_cast<uint64_t>(host))),
          .process = 10'000 + rank % ranks_per_host,
          .segment = 7,
          .address = fmt::format("10.{}.{}.{}", host / 65536, host / 256 % 256, host % 256),
          .port = static_cast<uint16_t>(40'000 + rank % ranks_per_host)};
}

void wait_for(const std::atomic<int>& flag, int value) {
  while (flag < value) std::this_thread::sleep_for(std::chrono::microseconds(200));
}

struct SimulatedRank {
  StoreConnection connection;
  Gathering request;
  uint32_t events = 0;
  int tries = 0;
  int64_t begun_ns = 0;
  std::unique_ptr<AddressBook> book;
  std::vector<Group> groups;
};

class Ranks {
 public:
  Ranks(int first, int count, const RendezvousOptions& options)
      : first_(first), options_(options), ranks_(static_cast<size_t>(count)) {
    for (int i = 0; i < count; ++i)
      ranks_[static_cast<size_t>(i)].request = rendezvous_request(address_of(first_ + i), options_);
  }

  void run(uint16_t port) {
    where_ = *socket_address("127.0.0.1", port);
    for (size_t i = 0; i < ranks_.size(); ++i) begin(i);
    std::array<epoll_event, 256> ready{};
    int64_t next_look = monotonic_ns() + 100'000'000;
    while (ready_ < ranks_.size()) {
      const int count = epoll_wait(events_, ready.data(), static_cast<int>(ready.size()), 50);
      for (int i = 0; i < count; ++i) go_on(ready[static_cast<size_t>(i)].data.u64);
      if (monotonic_ns() < next_look) continue;
      next_look = monotonic_ns() + 100'000'000;
      // One whose connection was lost on the way, among so many, tries again, each at its own time.
      for (size_t i = 0; i < ranks_.size(); ++i) {
        SimulatedRank& rank = ranks_[i];
        const auto patience =
            static_cast<int64_t>(mix64(i) % 1'000'000'000) + (1'000'000'000ll << rank.tries);
        const bool lost = rank.connection.failed() || !rank.connection.introduced();
        if (rank.book == nullptr && lost && monotonic_ns() - rank.begun_ns > patience) begin(i);
      }
    }
  }

  // Every rank knows exactly its peers, by their right addresses, and has its groups.
  void check() {
    const auto members = static_cast<size_t>(options_.mesh.size(Axis::tensor)),
               shards = static_cast<size_t>(options_.mesh.size(Axis::shard));
    for (size_t i = 0; i < ranks_.size(); i += std::max<size_t>(1, ranks_.size() / 64)) {
      SimulatedRank& rank = ranks_[i];
      for (const MemberRange& range : axis_neighbours(options_.mesh, first_ + static_cast<int>(i)))
        for (uint32_t peer = 0; peer < range.count; ++peer) {
          const auto number = static_cast<int>(range.begin + peer * range.stride);
          if (rank.book->address_of(number) != address_of(number)) throw_user_error("a wrong address");
        }
      if (rank.groups[0].ranks.size() != members || rank.groups[1].ranks.size() != shards ||
          rank.groups[2].ranks.size() != members * shards)
        throw_user_error("a wrong group");
    }
  }

 private:
  void begin(size_t i) {
    SimulatedRank& rank = ranks_[i];
    if (rank.connection.socket() >= 0) epoll_ctl(events_, EPOLL_CTL_DEL, rank.connection.socket(), nullptr);
    ++rank.tries;
    rank.begun_ns = monotonic_ns();
    rank.connection = StoreConnection(where_, first_ + static_cast<int>(i));
    rank.connection.send(encode_request(
        {StoreOperation::gather, 1, 60'000, rank.request.key, encode_gathering(rank.request)}));
    if (rank.connection.failed()) return;
    epoll_event event{};
    event.events = rank.events = rank.connection.events();
    event.data.u64 = i;
    epoll_ctl(events_, EPOLL_CTL_ADD, rank.connection.socket(), &event);
  }

  void go_on(size_t i) {
    SimulatedRank& rank = ranks_[i];
    auto answer = rank.connection.advance(secret_);
    if (answer) {
      Gathered gathered;
      for (std::string& piece : answer->pieces) {
        auto values = decode_values(std::move(piece));
        if (!values) throw_user_error("a wrong answer");
        gathered.values.push_back(std::move(*values));
      }
      const int number = first_ + static_cast<int>(i);
      rank.book = std::make_unique<AddressBook>(nullptr, options_, number, rank.request, std::move(gathered));
      const Coordinates at = coordinates_of(options_.mesh, number);
      rank.groups.push_back(group_on_axis(options_.mesh, at, Axis::tensor, 0));
      rank.groups.push_back(group_on_axis(options_.mesh, at, Axis::shard, 0));
      rank.groups.push_back({2, "all ranks", std::vector<int>(static_cast<size_t>(options_.mesh.ranks()))});
      std::iota(rank.groups[2].ranks.begin(), rank.groups[2].ranks.end(), 0);
      ++ready_;
    }
    if (rank.connection.failed()) {
      epoll_ctl(events_, EPOLL_CTL_DEL, rank.connection.socket(), nullptr);
    } else if (rank.connection.events() != rank.events) {
      epoll_event event{};
      event.events = rank.events = rank.connection.events();
      event.data.u64 = i;
      epoll_ctl(events_, EPOLL_CTL_MOD, rank.connection.socket(), &event);
    }
  }

  const int first_;
  const RendezvousOptions options_;
  const Secret secret_{"benchmark"};
  const int events_ = epoll_create1(EPOLL_CLOEXEC);
  SocketAddress where_;
  std::vector<SimulatedRank> ranks_;
  size_t ready_ = 0;
};

// In a process of its own.
pid_t start(Meeting& meeting, const std::function<void()>& work) {
  const pid_t child = fork();
  if (child != 0) return child;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = 0;
  try {
    work();
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    meeting.failed = 1;
    code = 1;
  }
  std::_Exit(code);
}

// Starts a server and clients, lets them go together, and returns the seconds until the last one is ready;
// negative if one failed.
double measure(int processes, Meeting& meeting, const std::function<void()>& serve,
               const std::function<void(int)>& prepare_and_run) {
  std::vector<pid_t> children;
  const pid_t server = start(meeting, serve);
  wait_for(meeting.port, 1);
  for (int i = 0; i < processes; ++i) children.push_back(start(meeting, [&, i] { prepare_and_run(i); }));
  while (meeting.prepared < processes && meeting.failed == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const int64_t begin = monotonic_ns();
  meeting.go = 1;
  bool good = true;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    good = good && status == 0;
  }
  meeting.stop = 1;
  waitpid(server, nullptr, 0);
  int64_t last = 0;
  for (const auto& ready : meeting.ready_ns) last = std::max(last, ready.load());
  return good ? seconds_of(last - begin) : -1;
}

struct ShareOfRanks {
  int first, count;
};
ShareOfRanks share_of(int process, const Options& options) {
  const int first = static_cast<int>(int64_t{options.ranks} * process / options.processes);
  const int end = static_cast<int>(int64_t{options.ranks} * (process + 1) / options.processes);
  return {first, end - first};
}

Meeting& new_meeting() {
  void* const shared =
      mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw_user_error("no shared memory");
  return *new (shared) Meeting;
}

double measure_own(const Options& options, int64_t& messages) {
  Meeting& meeting = new_meeting();
  RendezvousOptions rendezvous;
  rendezvous.mesh = mesh_for(options.ranks);
  const double seconds = measure(
      options.processes, meeting,
      [&] {
        const StoreServer server({.secret = Secret("benchmark"), .farewell_ns = 0});
        meeting.port = server.port();
        wait_for(meeting.stop, 1);
        const StoreServer::Counts counts = server.counts();
        meeting.messages = counts.requests + counts.replies + 3 * counts.admitted;
      },
      [&](int process) {
        const ShareOfRanks share = share_of(process, options);
        Ranks ranks(share.first, share.count, rendezvous);
        ++meeting.prepared;
        wait_for(meeting.go, 1);
        ranks.run(static_cast<uint16_t>(meeting.port));
        meeting.ready_ns[static_cast<size_t>(process)] = monotonic_ns();
        ranks.check();
      });
  messages = meeting.messages;
  if (seconds < 0) throw_user_error("the rendezvous failed");
  return seconds;
}

double measure_naive(const Options& options) {
  Meeting& meeting = new_meeting();
  const Mesh mesh = mesh_for(options.ranks);
  // A group for each place on the other axis.
  const int groups = mesh.size(Axis::shard) + mesh.size(Axis::tensor);
  return measure(
      options.processes, meeting,
      [&] {
        NaiveStore server;
        meeting.port = server.port();
        server.serve(meeting.stop);
      },
      [&](int process) {
        ++meeting.prepared;
        wait_for(meeting.go, 1);
        const int64_t deadline = monotonic_ns() + static_cast<int64_t>(options.naive_limit * 1e9);
        if (!run_naive_clients(static_cast<uint16_t>(meeting.port), share_of(process, options).count,
                               options.ranks, groups, deadline))
          std::_Exit(1);
        meeting.ready_ns[static_cast<size_t>(process)] = monotonic_ns();
      });
}

void run(const Options& options) {
  int64_t messages = 0;
  const double seconds = measure_own(options, messages);
  const double naive = options.no_naive ? 0 : measure_naive(options);
  if (options.json) {
    const std::string beside = options.no_naive ? ""
                               : naive < 0 ? fmt::format(", \"naive_timed_out\": {}", options.naive_limit)
                                           : fmt::format(", \"naive_seconds\": {:.4f}", naive);
    fmt::print("{{\"ranks\": {}, \"seconds\": {:.4f}{}, \"messages\": {}}}\n", options.ranks, seconds, beside,
               messages);
    return;
  }
  fmt::print("{} ranks ready in {:.3f} s, {} messages\n", options.ranks, seconds, messages);
  if (!options.no_naive && naive < 0)
    fmt::print("a naive store with a barrier after each group: not within {} s\n", options.naive_limit);
  if (!options.no_naive && naive >= 0)
    fmt::print("a naive store with a barrier after each group: {:.3f} s\n", naive);
}

}  // namespace

int main(int count, char** values) {
  Options arguments;
  BenchmarkOptions options("Times the start-up of many ranks.");
  options.flag("--json", arguments.json, "one JSON object");
  options.number("--ranks", arguments.ranks, 1, 60'000, "ranks, simulated");
  options.number("--processes", arguments.processes, 1, most_processes, "that they are spread over");
  options.flag("--no-naive", arguments.no_naive, "without the blocking store beside");
  options.number("--naive-limit", arguments.naive_limit, 0.1, 1e6,
                 "seconds after which that one is given up");
  return options.run(count, values, [&] { run(arguments); });
}
