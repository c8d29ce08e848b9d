// One rank of four is lost in the middle of a collective: killed, stopped, cut off from the network. What the
// others then end with. Shared by the tests of the transport between processes.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <functional>
#include <memory>
#include <numeric>
#include <ranges>
#include <string>
#include <vector>

#include "athanor/comm/comm_test_support.h"
#include "athanor/comm/interrupted_transport.h"
#include "athanor/comm/process_ranks.h"
#include "athanor/comm/relay.h"

namespace athanor {

inline std::vector<int> all_of(int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

// Puts the ranks on hosts: those of different hosts have nothing but TCP between them.
inline ProcessRanks::Adjust on_hosts(const std::vector<int>& hosts) {
  const bool several = std::adjacent_find(hosts.begin(), hosts.end(), std::not_equal_to<>()) != hosts.end();
  return [=](int rank, HostTransportOptions& transport, CommunicatorOptions& options) {
    options.hosts = hosts;
    if (!several) return;
    transport.host = fmt::format("host-{}", hosts[static_cast<size_t>(rank)]);
    transport.listen = "127.0.0.1";
  };
}

enum class Loss : uint8_t {
  killed,
  stopped,     // and its heart with it
  unanswered,  // stopped, and the deadline of the collective comes before that is noticed
  cut_off,     // alive, but nothing comes through any more
};

struct LostRankCase {
  CollectiveKind kind = CollectiveKind::all_reduce;  // send: around the ring of ranks, and received
  Loss loss = Loss::killed;
  std::vector<int> hosts = {0, 0, 0, 0};
  Algorithm algorithm = Algorithm::automatic;
  int64_t count = 200'000;  // elements, about
  bool at_first = false;    // at the first touch of the first collective of all
  int root = 0;
};

inline std::string describe(const LostRankCase& test) {
  return fmt::format("{} {} of {}, loss {}, hosts {}, at first {}, root {}", name_of(test.algorithm),
                     name_of(test.kind), test.count, static_cast<int>(test.loss),
                     testing::PrintToString(test.hosts), test.at_first, test.root);
}

class LostRankRun {
 public:
  static constexpr int ranks = 4, lost = 2;

  explicit LostRankRun(const LostRankCase& test)
      : test_(test),
        processes_(
            ranks,
            [&](int rank, HostTransportOptions& transport, CommunicatorOptions& options) {
              on_hosts(test.hosts)(rank, transport, options);
              // Runs side by side may get each other's ports.
              transport.generation = reinterpret_cast<uintptr_t>(this);
              transport.connect_timeout_ns = 5'000'000'000;
              if (test.loss == Loss::stopped || test.loss == Loss::cut_off)
                transport.silence_ns = 1'000'000'000;
              if (test.loss == Loss::unanswered) options.timeout_ns = 1'000'000'000;
            },
            [&](int rank, Communicator& communicator, Meeting& meeting) {
              work(rank, communicator, meeting);
            },
            [this](int, std::unique_ptr<Transport> transport) -> std::unique_ptr<Transport> {
              return std::make_unique<InterruptedTransport>(std::move(transport), moments_);
            }) {
    processes_.meeting().relayed_rank = lost;
    if (test.loss == Loss::cut_off) relay_ = std::make_unique<Relay>(processes_.meeting(), ranks);
  }

  // Waits for all that survive, and looks at what they say.
  void expect_reports() {
    SCOPED_TRACE(describe(test_));
    const Meeting& meeting = processes_.meeting();
    bool blamed = false;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == lost && test_.loss != Loss::cut_off) continue;
      const auto at = static_cast<size_t>(rank);
      const std::string message = processes_.wait_for(rank, 100);
      blamed = blamed || message.find("rank 2 ") != std::string::npos;
      EXPECT_TRUE(names_cause(message, rank)) << rank << ": " << message;
      EXPECT_TRUE(names_collective(message)) << rank << ": " << message;
      EXPECT_LT(seconds_of(meeting.failed_ns[at] - meeting.struck_ns), most_seconds()) << message;
      EXPECT_STREQ(meeting.left_behind[at].data(), "") << rank;
    }
    EXPECT_TRUE(blamed);
  }

 private:
  // Runs the collective over and over until it fails.
  void work(int rank, Communicator& communicator, Meeting& meeting) {
    while (test_.loss == Loss::cut_off && meeting.relay_port[ranks - 1] == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    communicator.add_group({0, "all", all_of(ranks)});
    const auto input = communicator.allocate(5 * test_.count + 4096),
               output = communicator.allocate(5 * test_.count + 4096);
    std::vector<std::unique_ptr<PreparedCollective>> collectives;
    const auto add = [&](CollectiveKind kind, int root) {
      Collective collective{.group = 0, .input = input.get(), .output = output.get()};
      collective.spec =
          example_specs(kind, ranks, test_.count, test_.algorithm, root)[static_cast<size_t>(rank)];
      if (kind == CollectiveKind::all_to_all)
        collective.spec.counts = collective.spec.receive_counts =
            std::vector<int64_t>(ranks, (test_.count + ranks - 1) / ranks);
      collectives.push_back(communicator.prepare(collective));
    };
    if (test_.kind != CollectiveKind::send) {
      add(test_.kind, test_.root);
    } else {
      // Even ranks send first, odd ones receive first.
      for (const bool sends : {rank % 2 == 0, rank % 2 != 0})
        add(sends ? CollectiveKind::send : CollectiveKind::receive, (rank + (sends ? 1 : ranks - 1)) % ranks);
    }
    if (rank == lost) {
      moments_.strike = [&] { strike(meeting); };
      if (test_.at_first) moments_.strike_at = 0;
    }
    for (int round = 0;; ++round) {
      // In the third round, when half of what the second had has passed, and all have met.
      if (round == 1) moments_.passed = 0;
      if (round == 2 && rank == lost && !test_.at_first) {
        for (const auto& progress : meeting.progress | std::views::take(ranks))
          while (progress < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        moments_.strike_at = std::exchange(moments_.passed, 0) / 2;
      }
      for (const auto& collective : collectives) communicator.run(*collective);
      ++meeting.progress[static_cast<size_t>(rank)];
    }
  }

  void strike(Meeting& meeting) const {
    meeting.struck_ns = monotonic_ns();
    if (test_.loss == Loss::killed) raise(SIGKILL);
    if (test_.loss == Loss::cut_off)
      kill(meeting.relay, SIGSTOP);
    else
      raise(SIGSTOP);
  }

  bool names_cause(const std::string& message, int rank) const {
    const auto says = [&](const char* text) { return message.find(text) != std::string::npos; };
    const bool names_lost = says("rank 2 ");
    // Who comes to the first collective last may find that others have gone, who had seen more.
    if (test_.at_first) return says("rank ");
    switch (test_.loss) {
      case Loss::killed:
        return names_lost && (says("has died") || says("has ended") || says(" the connection") ||
                              says("cannot read the memory of rank 2") || says("Connection refused"));
      case Loss::stopped:
        return names_lost && says("no sign of life");
      case Loss::unanswered: {
        const size_t missing = message.find("missing: rank ");
        return says("did not end within") && missing != std::string::npos &&
               message.substr(missing, message.find('\n', missing) - missing).find('2') !=
                   std::string::npos &&
               (says("rank 2 does not answer") || says("rank 2 cannot be asked"));
      }
      case Loss::cut_off:  // which sees the others fall silent
        return (names_lost || rank == lost) && says("no sign of life");
    }
    return false;
  }

  bool names_collective(const std::string& message) const {
    std::vector<CollectiveKind> kinds = {test_.kind};
    if (test_.kind == CollectiveKind::send) kinds.push_back(CollectiveKind::receive);
    return std::ranges::any_of(kinds, [&](CollectiveKind kind) {
      const std::string begin = fmt::format("{} #", name_of(kind));
      for (size_t at = message.find(begin); at != std::string::npos; at = message.find(begin, at + 1)) {
        size_t end = at + begin.size();
        while (end < message.size() && std::isdigit(message[end]) != 0) ++end;
        if (end > at + begin.size() && message.compare(end, 15, " of group 'all'") == 0) return true;
      }
      return false;
    });
  }

  // Ten times what it takes and more: the machine may be busy.
  double most_seconds() const {
    if (test_.loss != Loss::killed || test_.at_first) return 50;  // ten times the longest time-out there
    return 10;
  }

  const LostRankCase test_;
  Moments moments_;  // each process has its own
  ProcessRanks processes_;
  std::unique_ptr<Relay> relay_;
};

// On these hosts: each kind once, the lost rank among those that get a broadcast and as its root.
inline std::vector<LostRankCase> every_kind_of_collective(Loss loss, const std::vector<int>& hosts) {
  std::vector<LostRankCase> cases;
  for (const CollectiveKind kind :
       {CollectiveKind::all_reduce, CollectiveKind::all_gather, CollectiveKind::reduce_scatter,
        CollectiveKind::all_to_all, CollectiveKind::broadcast, CollectiveKind::send})
    cases.push_back({.kind = kind, .loss = loss, .hosts = hosts});
  cases.push_back(
      {.kind = CollectiveKind::broadcast, .loss = loss, .hosts = hosts, .root = LostRankRun::lost});
  return cases;
}

// Whether the kind of collective has the algorithm, in a group on these hosts.
inline bool has_algorithm(const LostRankCase& test) {
  CollectiveSpec spec =
      example_specs(test.kind, LostRankRun::ranks, test.count, test.algorithm, test.root)[0];
  return choose_algorithm(spec, {test.hosts}) == test.algorithm;
}

// Runs of several cases side by side: most of their time is waiting.
inline void expect_lost_rank_reports(const std::vector<LostRankCase>& cases) {
  constexpr size_t at_a_time = 14;
  for (size_t first = 0; first < cases.size(); first += at_a_time) {
    std::vector<std::unique_ptr<LostRankRun>> runs;
    for (size_t i = first; i < std::min(first + at_a_time, cases.size()); ++i)
      runs.push_back(std::make_unique<LostRankRun>(cases[i]));
    for (const auto& run : runs) run->expect_reports();
  }
}

}  // namespace athanor
