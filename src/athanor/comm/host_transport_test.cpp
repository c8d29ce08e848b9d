#include "athanor/comm/host_transport.h"

#include <gtest/gtest.h>

#include "athanor/comm/collective_cases.h"
#include "athanor/comm/lost_rank_cases.h"
#include "athanor/comm/process_ranks.h"
#include "athanor/comm/socket_address.h"
#include "athanor/comm/wire.h"

namespace athanor {
namespace {

void expect_all_cases(const GroupShape& group, const std::vector<CollectiveCase>& cases) {
  ProcessRanks ranks(group.members(), on_hosts(group.hosts), [&](int, Communicator& communicator, Meeting&) {
    communicator.add_group({5, "all", all_of(group.members())});
    std::string wrong;
    for (size_t i = 0; i < cases.size(); ++i)
      if (const auto fault = run_case(communicator, 5, cases[i], i % 2 == 1); !fault.empty())
        wrong += fault + "\n";
    if (!wrong.empty()) throw_user_error(wrong);
  });
  for (int rank = 0; rank < group.members(); ++rank) EXPECT_EQ(ranks.wait_for(rank), "") << rank;
}

TEST(HostTransport, EveryCollectiveByEveryAlgorithmInSharedMemory) {
  for (const int members : {1, 2, 3, 5, 8}) {
    const GroupShape group = one_host(members);
    expect_all_cases(group, all_cases(group, {1, 7, 1022}));
  }
}

TEST(HostTransport, EveryCollectiveByEveryAlgorithmBetweenHosts) {
  for (const GroupShape& group : {one_member_per_host(3), GroupShape{{0, 0, 1, 1}}})
    expect_all_cases(group, all_cases(group, {1, 7, 1022}));
}

void expect_long_messages(const GroupShape& group) {
  std::vector<CollectiveCase> cases;
  for (int kind = 0; kind <= static_cast<int>(CollectiveKind::broadcast); ++kind)
    for (int algorithm = 0; algorithm < algorithm_count; ++algorithm)
      if (kind == 0 || algorithm == 0)
        cases.push_back(make_case(example_specs(static_cast<CollectiveKind>(kind), 4, 300'001,
                                                static_cast<Algorithm>(algorithm), 1),
                                  group, algorithm % 2 == 0));
  expect_all_cases(group, cases);
}

TEST(HostTransport, LongMessagesInSharedMemory) {
  expect_long_messages(one_host(4));
}

TEST(HostTransport, LongMessagesBetweenHosts) {
  expect_long_messages(one_member_per_host(4));
  expect_long_messages({{0, 1, 0, 1}});
}

// Memory that peers cannot see goes through the mailboxes.
TEST(HostTransport, PrivateMemoryTravelsToo) {
  ProcessRanks ranks(3, on_hosts({0, 0, 0}), [](int rank, Communicator& communicator, Meeting&) {
    communicator.add_group({0, "all", {0, 1, 2}});
    std::vector<float> values(400'000);
    for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(rank + static_cast<int>(i % 5));
    Collective sum{.group = 0};
    sum.input = sum.output = reinterpret_cast<std::byte*>(values.data());
    sum.spec.counts = {static_cast<int64_t>(values.size())};
    communicator.run(*communicator.prepare(sum));
    for (size_t i = 0; i < values.size(); ++i)
      if (values[i] != static_cast<float>(3 + 3 * (i % 5))) throw_user_error("a wrong sum");
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait_for(rank), "");
}

// What is freed and allocated again is another region, even at the same place.
TEST(HostTransport, P42_RegionsAreNotMistakenForEarlierOnes) {
  ProcessRanks ranks(2, on_hosts({0, 0}), [](int rank, Communicator& communicator, Meeting&) {
    communicator.add_group({0, "all", {0, 1}});
    for (int round = 0; round < 20; ++round) {
      const int64_t count = 20'000 + 3000 * (round % 3);
      const auto memory = communicator.allocate(count * 4);
      auto* values = reinterpret_cast<float*>(memory.get());
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(round + rank);
      Collective sum{.group = 0, .input = memory.get(), .output = memory.get()};
      sum.spec.counts = {count};
      communicator.run(*communicator.prepare(sum));
      for (int64_t i = 0; i < count; ++i)
        if (values[i] != static_cast<float>(2 * round + 1)) throw_user_error("a wrong sum");
    }
  });
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait_for(rank), "");
}

// As by a scheduler that suspends whole jobs: the time does not count for anybody.
TEST(HostTransport, RanksThatWereAllStoppedGoOn) {
  constexpr int64_t limit_ns = 2'000'000'000;
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0}, {0, 1}}) {
    ProcessRanks ranks(
        2,
        [&](int rank, HostTransportOptions& transport, CommunicatorOptions& options) {
          on_hosts(hosts)(rank, transport, options);
          transport.silence_ns = options.timeout_ns = limit_ns;
        },
        [](int rank, Communicator& communicator, Meeting& meeting) {
          communicator.add_group({0, "all", {0, 1}});
          const auto memory = communicator.allocate(4);
          Collective sum{.group = 0, .input = memory.get(), .output = memory.get(), .patient = true};
          sum.spec.counts = {1};
          communicator.run(*communicator.prepare(sum));  // whenever both have started
          ++meeting.progress[static_cast<size_t>(rank)];
          // One of them is waiting when it happens.
          if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(300));
          sum.patient = false;
          communicator.run(*communicator.prepare(sum));
        });
    for (const int rank : {0, 1}) ranks.wait_for_progress(rank, 1);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    for (const int rank : {0, 1}) ranks.signal(rank, SIGSTOP);
    std::this_thread::sleep_for(std::chrono::nanoseconds(limit_ns + 600'000'000));
    for (const int rank : {0, 1}) ranks.signal(rank, SIGCONT);
    for (const int rank : {0, 1}) EXPECT_EQ(ranks.wait_for(rank), "");
  }
}

// With heartbeats out of the way, the deadline of the collective says who does not answer.
TEST(HostTransport, P105_ATimeOutNamesTheStoppedRank) {
  ProcessRanks ranks(
      3, [](int, HostTransportOptions&, CommunicatorOptions& options) { options.timeout_ns = 1'000'000'000; },
      [](int rank, Communicator& communicator, Meeting& meeting) {
        communicator.add_group({3, "shard 0", {0, 1, 2}});
        const auto memory = communicator.allocate(4);
        Collective sum{.group = 3, .input = memory.get(), .output = memory.get(), .patient = true};
        sum.spec.counts = {1};
        communicator.run(*communicator.prepare(sum));  // whenever all have started
        ++meeting.progress[static_cast<size_t>(rank)];
        if (rank == 1) raise(SIGSTOP);
        sum.patient = false;
        communicator.run(*communicator.prepare(sum));
      });
  for (const int rank : {0, 2}) {
    const std::string message = ranks.wait_for(rank);
    EXPECT_NE(message.find("all_reduce #1 of group 'shard 0'"), std::string::npos) << message;
    EXPECT_NE(message.find("missing: rank 1\n"), std::string::npos) << message;
    EXPECT_NE(message.find("rank 1 does not answer"), std::string::npos) << message;
  }
}

TEST(HostTransport, ARankMayLeaveWhenItsWorkIsDone) {
  for (const std::vector<int>& hosts : {std::vector<int>{0, 0}, {0, 1}}) {
    ProcessRanks ranks(2, on_hosts(hosts), [](int rank, Communicator& communicator, Meeting&) {
      communicator.add_group({0, "all", {0, 1}});
      const auto memory = communicator.allocate(4);
      Collective send{.group = 0, .input = memory.get(), .output = memory.get()};
      send.spec.kind = rank == 0 ? CollectiveKind::send : CollectiveKind::receive;
      send.spec.root = 1 - rank;
      send.spec.counts = {1};
      const auto prepared = communicator.prepare(send);
      communicator.run(*prepared);
      if (rank == 0) {
        communicator.run(*prepared);  // read after this rank is gone
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      communicator.run(*prepared);
    });
    for (int rank = 0; rank < 2; ++rank) EXPECT_EQ(ranks.wait_for(rank), "");
  }
}

// Its peers close their connections to it, which is no failure that it would have to tell to anybody.
TEST(HostTransport, ARankThatLeavesEarlyDoesNotStopTheOthers) {
  ProcessRanks ranks(4, on_hosts({0, 0, 1, 1}), [](int rank, Communicator& communicator, Meeting&) {
    communicator.add_group({0, "all", {0, 1, 2, 3}});
    if (rank < 3) communicator.add_group({1, "three", {0, 1, 2}});
    const auto memory = communicator.allocate(4);
    Collective sum{.group = 0, .input = memory.get(), .output = memory.get()};
    sum.spec.counts = {1};
    for (const Algorithm algorithm :
         {Algorithm::ring, Algorithm::halving_doubling, Algorithm::hierarchical}) {
      sum.spec.algorithm = algorithm;
      communicator.run(*communicator.prepare(sum));
    }
    if (rank == 3) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    sum.group = 1;
    communicator.run(*communicator.prepare(sum));
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQ(ranks.wait_for(rank), "") << rank;
}

// What it sent has arrived; that there will be no connection to it harms nobody.
TEST(HostTransport, ARankThatHasLeftIsNotLookedFor) {
  ProcessRanks ranks(3, on_hosts({0, 1, 1}), [&](int rank, Communicator& communicator, Meeting& meeting) {
    communicator.add_group({0, "all", {0, 1, 2}});
    const auto memory = communicator.allocate(4);
    Collective operation{.group = 0, .input = memory.get(), .output = memory.get()};
    operation.spec.counts = {1};
    if (rank < 2) {
      operation.spec.kind = rank == 0 ? CollectiveKind::send : CollectiveKind::receive;
      operation.spec.root = 1 - rank;
      if (rank == 1)
        while (meeting.progress[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
      communicator.run(*communicator.prepare(operation));
    }
    ++meeting.progress[static_cast<size_t>(rank)];
    if (rank == 0) return;
    // Longer than it takes to give up one who does not listen.
    std::this_thread::sleep_for(std::chrono::milliseconds(3500));
    operation.spec.kind = rank == 1 ? CollectiveKind::send : CollectiveKind::receive;
    operation.spec.root = 3 - rank;
    communicator.run(*communicator.prepare(operation));
  });
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(ranks.wait_for(rank), "") << rank;
}

TEST(HostTransport, AnotherGenerationOrSecretIsNotMet) {
  for (const bool generation : {false, true}) {
    ProcessRanks ranks(
        2,
        [&](int rank, HostTransportOptions& transport, CommunicatorOptions&) {
          if (rank == 0) return;
          if (generation) transport.generation = 2;
          if (!generation) transport.secret = Secret("another");
        },
        [](int, Communicator& communicator, Meeting&) {
          communicator.add_group({0, "all", {0, 1}});
          const auto memory = communicator.allocate(4);
          Collective sum{.group = 0, .input = memory.get(), .output = memory.get()};
          sum.spec.counts = {1};
          communicator.run(*communicator.prepare(sum));
        });
    // Whoever looks first sees that the other is not one of its own; the second may find nobody.
    const std::string first = ranks.wait_for(0), second = ranks.wait_for(1);
    EXPECT_NE((first + second).find("generation"), std::string::npos) << first << second;
    EXPECT_FALSE(first.empty() || second.empty());
  }
}

TEST(HostTransport, P90_AConnectionThatIsNotMadeEndsInTimeAndIsNamed) {
  for (const bool answers : {false, true}) {
    // Somebody listens and never speaks, or nobody listens.
    const Descriptor silent = tcp_socket(AF_INET);
    const auto any = socket_address("127.0.0.1", 0);
    ASSERT_EQ(bind(silent.number(), any->data(), any->length), 0);
    if (answers) {
      ASSERT_EQ(listen(silent.number(), 10), 0);
    }
    const uint16_t port = port_of_socket(silent.number());
    HostEndpoint endpoint({.rank = 0,
                           .ranks = 2,
                           .secret = Secret("test"),
                           .host = "here",
                           .listen = "127.0.0.1",
                           .connect_timeout_ns = 600'000'000});
    const auto communicator =
        make_communicator(endpoint.connect([&](int) {
          return HostAddress{.rank = 1,
                             .generation = 1,
                             .host = "there",
                             .process = 1,
                             .segment = 0,
                             .address = "127.0.0.1",
                             .port = port};
        }),
                          {.timeout_ns = 5'000'000'000, .algorithm = Algorithm::automatic, .hosts = {}});
    communicator->add_group({0, "all", {0, 1}});
    float value = 1;
    Collective sum{.group = 0};
    sum.input = sum.output = reinterpret_cast<std::byte*>(&value);
    sum.spec.counts = {1};
    const int64_t begin = monotonic_ns();
    try {
      communicator->run(*communicator->prepare(sum));
      ADD_FAILURE() << "connected to nobody";
    } catch (const Error& error) {
      EXPECT_NE(
          error.message().find(fmt::format("no connection to rank 1 (127.0.0.1 port {}) within 0.6 s", port)),
          std::string::npos)
          << error.message();
    }
    EXPECT_LT(seconds_of(monotonic_ns() - begin), 6);
  }
}

Descriptor connected_to(uint16_t port) {
  const auto where = socket_address("127.0.0.1", port);
  Descriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(socket.number(), where->data(), where->length), 0);
  return socket;
}

// Random bytes, a wrong secret, half a hello, thousands of connections: nobody of them joins, and the ranks
// meet.
TEST(HostTransport, StrangersNeitherJoinNorStopTheJob) {
  ProcessRanks ranks(2, on_hosts({0, 1}), [](int rank, Communicator& communicator, Meeting& meeting) {
    while (meeting.progress[0] == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    communicator.add_group({0, "all", {0, 1}});
    const auto memory = communicator.allocate(400'000);
    auto* values = reinterpret_cast<float*>(memory.get());
    Collective sum{.group = 0, .input = memory.get(), .output = memory.get()};
    sum.spec.counts = {100'000};
    const auto prepared = communicator.prepare(sum);
    for (int round = 0; round < 200 || meeting.progress[0] < 2; ++round) {
      for (int i = 0; i < 100'000; ++i) values[i] = static_cast<float>(rank + 1);
      communicator.run(*prepared);
      for (int i = 0; i < 100'000; ++i)
        if (values[i] != 3) throw_user_error("a wrong sum");
      // Both must stop after the same round.
      values[0] = meeting.progress[0] < 2 ? 1 : 0;
      communicator.run(*prepared);
      if (round >= 200 && values[0] < 2) break;
    }
  });
  Meeting& meeting = ranks.meeting();
  while (meeting.have_address[1] == 0 || meeting.have_address[0] == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const HostAddress victim = parse_host_address(meeting.addresses[1].data());
  std::vector<Descriptor> strangers;
  for (int i = 0; i < 3000; ++i) strangers.push_back(connected_to(victim.port));
  meeting.progress[0] = 1;  // the ranks begin
  for (int i = 0; i < 300; ++i) {
    const Descriptor stranger = connected_to(victim.port);
    std::vector<std::byte> noise(i % 3 == 0 ? 40 : 88 + static_cast<size_t>(i % 200));
    for (size_t k = 0; k < noise.size(); ++k)
      noise[k] = static_cast<std::byte>(mix64(static_cast<uint64_t>(i) * 1000 + k));
    Challenge challenge{};
    if (i % 2 == 0 && recv(stranger.number(), challenge.data(), challenge.size(), MSG_WAITALL) > 0) {
      const auto hello = answer_challenge(Secret("guess"), challenge, {0, 1, 1}, random_nonce());
      if (hello) std::copy_n(hello->begin(), std::min(noise.size(), hello->size()), noise.begin());
    }
    send(stranger.number(), noise.data(), noise.size(), MSG_NOSIGNAL);
    if (i % 10 != 0 || noise.size() < challenge.size() + 48) continue;
    std::byte answer{};
    while (recv(stranger.number(), &answer, 1, 0) > 0) {
    }
  }
  meeting.progress[0] = 2;
  for (const int rank : {0, 1}) EXPECT_EQ(ranks.wait_for(rank), "");
}

TEST(HostAddress, IsReadAsItWasWritten) {
  const HostAddress address{3, 7, "boot/1", 123, 5, "::1", 4000};
  EXPECT_EQ(parse_host_address(to_text(address)), address);
  for (const char* text : {"", "1", "x 1 a 1 1 1 ", "1 1 a 1 1 70000 ", "1 1 a -1 1 1 ", "-1 1 a 1 1 1 ",
                           "1 1 a 1 1 1", "1 1 a 1 1 1 10.0.0.1 more", "1  a 1 1 1 "})
    EXPECT_THROW(parse_host_address(text), Error) << text;
}

}  // namespace
}  // namespace athanor
