#include "athanor/comm/communicator.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <thread>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/comm/collective_cases.h"
#include "athanor/comm/comm_test_support.h"
#include "athanor/comm/thread_transport.h"
#include "athanor/device/cpu_device.h"

namespace athanor {
namespace {

// Runs `work(rank, communicator)` in a thread for each rank; the message of the error that each ended with.
template <class Work>
std::vector<std::string> on_ranks(int ranks, const std::vector<MessageFaults>& faults,
                                  CommunicatorOptions options, Work&& work) {
  ThreadNetwork network(ranks);
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < ranks; ++rank)
    communicators.push_back(
        make_communicator(network.attach(rank, faults[static_cast<size_t>(rank) % faults.size()]), options));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] {
      try {
        work(rank, *communicators[static_cast<size_t>(rank)]);
      } catch (const Error& error) {
        errors[static_cast<size_t>(rank)] = error.message();
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

std::vector<int> all_of(int ranks) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<GroupShape> groups_to_test() {
  std::vector<GroupShape> groups;
  for (int members = 1; members <= 8; ++members) {
    groups.push_back(members % 2 == 0 ? one_host(members) : one_member_per_host(members));
    if (members % 4 != 0) continue;
    GroupShape grid = one_host(members);
    for (int m = 0; m < members; ++m) grid.hosts[static_cast<size_t>(m)] = m % 2;
    groups.push_back(grid);
  }
  return groups;
}

void expect_all_cases(const MessageFaults& faults, const std::vector<int64_t>& counts) {
  for (const GroupShape& group : groups_to_test()) {
    const std::vector<CollectiveCase> cases = all_cases(group, counts);
    CommunicatorOptions options;
    options.hosts = group.hosts;
    options.timeout_ns = 20'000'000'000;
    std::vector<std::vector<std::string>> wrong(static_cast<size_t>(group.members()));
    const auto errors =
        on_ranks(group.members(), {faults}, options, [&](int rank, Communicator& communicator) {
          communicator.add_group({5, "all", all_of(group.members())});
          for (size_t i = 0; i < cases.size(); ++i)
            if (auto fault = run_case(communicator, 5, cases[i], i % 2 == 1); !fault.empty())
              wrong[static_cast<size_t>(rank)].push_back(fault);
        });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (const auto& each : wrong) EXPECT_EQ(each, std::vector<std::string>{});
  }
}

TEST(ThreadTransport, EveryCollectiveByEveryAlgorithm) {
  expect_all_cases({}, {0, 1, 7, 1022});
}

TEST(ThreadTransport, TheSameWhenASenderWaitsForItsReader) {
  MessageFaults faults;
  faults.zero_buffering = true;
  expect_all_cases(faults, {1, 7, 1022});
}

TEST(ThreadTransport, TheSameWhenEverythingIsCopied) {
  MessageFaults faults;
  faults.always_copy = true;
  faults.checksums = true;
  expect_all_cases(faults, {7, 1022});
}

// Long messages: in pieces, in place and through the ring of the mailbox.
TEST(ThreadTransport, LongMessages) {
  for (const bool copies : {false, true}) {
    MessageFaults faults;
    faults.always_copy = copies;
    const GroupShape group{{0, 0, 1, 1}};
    std::vector<CollectiveCase> cases;
    for (int kind = 0; kind <= static_cast<int>(CollectiveKind::broadcast); ++kind)
      for (int algorithm = 0; algorithm < algorithm_count; ++algorithm)
        if (kind == 0 || algorithm == 0)
          cases.push_back(make_case(example_specs(static_cast<CollectiveKind>(kind), 4, 300'001,
                                                  static_cast<Algorithm>(algorithm), 1),
                                    group, algorithm % 2 == 0));
    CommunicatorOptions options;
    options.hosts = group.hosts;
    std::vector<std::vector<std::string>> wrong(4);
    const auto errors = on_ranks(4, {faults}, options, [&](int rank, Communicator& communicator) {
      communicator.add_group({5, "all", all_of(4)});
      for (size_t i = 0; i < cases.size(); ++i)
        if (auto fault = run_case(communicator, 5, cases[i], i % 2 == 1); !fault.empty())
          wrong[static_cast<size_t>(rank)].push_back(fault);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
    for (const auto& each : wrong) EXPECT_EQ(each, std::vector<std::string>{});
  }
}

// One thing after another on a stream: collectives of two groups, sends to a neighbour, and counts that
// change.
TEST(Communicator, RunsOnAStream) {
  const int n = 4;
  const auto errors = on_ranks(n, {{}}, {}, [&](int rank, Communicator& communicator) {
    CpuDevice device;
    Stream& stream = device.create_stream("communication", 1);
    communicator.add_group({0, "all", all_of(n)});
    communicator.add_group(
        {rank % 2 == 0 ? 1 : 2, "pair", rank % 2 == 0 ? std::vector{0, 2} : std::vector{3, 1}});
    const auto memory = communicator.allocate(4096);
    auto* values = reinterpret_cast<float*>(memory.get());
    const auto bytes = [&](int at) { return reinterpret_cast<std::byte*>(values + at); };
    Collective all{.group = 0, .input = bytes(0), .output = bytes(0)};
    all.spec.counts = {3};
    Collective pair{.group = rank % 2 == 0 ? 1 : 2, .input = bytes(0), .output = bytes(64)};
    pair.spec.kind = CollectiveKind::all_gather;
    pair.spec.counts = {3, 3};
    Collective to{.group = 0, .input = bytes(64), .output = nullptr};
    to.spec.kind = CollectiveKind::send;
    to.spec.counts = {6};
    to.spec.root = (rank + 1) % n;
    Collective from{.group = 0, .input = nullptr, .output = bytes(128)};
    from.spec.kind = CollectiveKind::receive;
    from.spec.counts = {6};
    from.spec.root = (rank + n - 1) % n;
    const auto p_all = communicator.prepare(all), p_pair = communicator.prepare(pair),
               p_to = communicator.prepare(to), p_from = communicator.prepare(from);
    for (int round = 0; round < 50; ++round) {
      for (int i = 0; i < 3; ++i) values[i] = static_cast<float>(rank + i);
      communicator.start(*p_all, stream);
      communicator.start(*p_pair, stream);
      communicator.start(*p_to, stream);
      communicator.start(*p_from, stream);
      stream.synchronize();
      for (int i = 0; i < 3; ++i) {
        ASSERT_EQ(values[i], static_cast<float>(6 + 4 * i));
        ASSERT_EQ(values[64 + i], values[i]);
        ASSERT_EQ(values[67 + i], values[i]);
        ASSERT_EQ(values[128 + i], values[i]);
        ASSERT_EQ(values[131 + i], values[i]);
      }
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Communicator, ReadsCountsWhenItRuns) {
  const int n = 3;
  const auto errors = on_ranks(n, {{}}, {}, [&](int rank, Communicator& communicator) {
    communicator.add_group({0, "all", all_of(n)});
    std::vector<int64_t> counts(3), receive_counts(3);
    std::vector<int32_t> input(12), output(12);
    Collective exchange{.group = 0,
                        .input = reinterpret_cast<std::byte*>(input.data()),
                        .output = reinterpret_cast<std::byte*>(output.data()),
                        .counts_at = counts.data(),
                        .receive_counts_at = receive_counts.data()};
    exchange.spec.kind = CollectiveKind::all_to_all;
    exchange.spec.dtype = exchange.spec.wire = DType::int32;
    exchange.spec.counts = exchange.spec.receive_counts = {4, 4, 4};
    const auto prepared = communicator.prepare(exchange);
    const auto count = [](int round, int from, int to) { return int64_t{(round * 3 + from * 2 + to) % 5}; };
    for (int round = 0; round < 20; ++round) {
      size_t at = 0;
      for (int to = 0; to < n; ++to) {
        counts[static_cast<size_t>(to)] = count(round, rank, to);
        receive_counts[static_cast<size_t>(to)] = count(round, to, rank);
        for (int64_t i = 0; i < count(round, rank, to); ++i)
          input[at++] = rank * 100 + to * 10 + static_cast<int32_t>(i);
      }
      communicator.run(*prepared);
      at = 0;
      for (int from = 0; from < n; ++from)
        for (int64_t i = 0; i < count(round, from, rank); ++i)
          ASSERT_EQ(output[at++], from * 100 + rank * 10 + static_cast<int32_t>(i));
    }
    counts[1] = 5;
    if (rank == 0) communicator.run(*prepared);
  });
  EXPECT_NE(errors[0].find("a count of 5 where there is room for 4"), std::string::npos) << errors[0];
}

// The root is done with a broadcast only when the reader, who comes late, has read.
TEST(Communicator, P40_BuffersAreRefilledOnlyAfterTheyWereRead) {
  MessageFaults slow;
  slow.delay_ns = 2'000'000;
  const auto errors = on_ranks(2, {{}, slow}, {}, [&](int rank, Communicator& communicator) {
    communicator.add_group({0, "all", {0, 1}});
    const int64_t count = 20'000;
    const auto memory = communicator.allocate(count * 4);
    auto* values = reinterpret_cast<float*>(memory.get());
    Collective give{.group = 0, .input = memory.get(), .output = memory.get()};
    give.spec.kind = CollectiveKind::broadcast;
    give.spec.counts = {count};
    const auto prepared = communicator.prepare(give);
    for (int round = 0; round < 5; ++round) {
      if (rank == 0) std::fill(values, values + count, static_cast<float>(round));
      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      communicator.run(*prepared);
      for (int64_t i = 0; i < count; i += 777) ASSERT_EQ(values[i], static_cast<float>(round));
      std::fill(values, values + count, NAN);
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// Each sample must come back to where it came from: a group is a group.
TEST(Communicator, P23_CollectivesRunOnTheirOwnGroupOnly) {
  const auto errors = on_ranks(4, {{}}, {}, [&](int rank, Communicator& communicator) {
    const int first = rank / 2 * 2;
    communicator.add_group({first, "tensor", {first, first + 1}});
    const std::vector<float> sample =
        rank < 2 ? std::vector<float>{0, 1, 2, 3} : std::vector<float>{10, 11, 12, 13};
    std::vector<float> own(sample.begin() + 2 * (rank % 2), sample.begin() + 2 * (rank % 2) + 2), gathered(4);
    Collective gather{.group = first,
                      .input = reinterpret_cast<std::byte*>(own.data()),
                      .output = reinterpret_cast<std::byte*>(gathered.data())};
    gather.spec.kind = CollectiveKind::all_gather;
    gather.spec.counts = {2, 2};
    communicator.run(*communicator.prepare(gather));
    EXPECT_EQ(gathered, sample);
    Collective without = gather;
    without.group = Collective{}.group;
    EXPECT_THROW(communicator.prepare(without), Error);
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

// What a broken wire does is noticed, and everybody hears of it.
TEST(Communicator, LostSwappedAndDamagedMessagesEndWithAnError) {
  const auto error_with = [](MessageFaults faults, const std::string& expected) {
    faults.always_copy = faults.checksums = true;
    CommunicatorOptions options;
    options.timeout_ns = 2'000'000'000;
    const auto errors = on_ranks(3, {MessageFaults{.always_copy = true, .checksums = true}, faults}, options,
                                 [&](int, Communicator& communicator) {
                                   communicator.add_group({0, "all", {0, 1, 2}});
                                   std::vector<float> values(50'000, 1);
                                   Collective sum{.group = 0};
                                   sum.input = sum.output = reinterpret_cast<std::byte*>(values.data());
                                   sum.spec.counts = {50'000};
                                   const auto prepared = communicator.prepare(sum);
                                   for (int round = 0; round < 3; ++round) communicator.run(*prepared);
                                 });
    // The one whose messages are lost does not notice by itself, and this may be its last collective.
    for (const int rank : {0, 2})
      EXPECT_NE(errors[static_cast<size_t>(rank)].find(expected), std::string::npos)
          << errors[static_cast<size_t>(rank)];
  };
  error_with({.drop = 1}, "out of order");
  error_with({.swap = 3}, "out of order");
  error_with({.corrupt = 2}, "was damaged");
  error_with({.drop = 11}, "did not end within 2.0 s");
}

TEST(Communicator, P105_ATimeOutNamesWhoIsMissing) {
  CommunicatorOptions options;
  options.timeout_ns = 1'000'000'000;
  std::atomic<int> ended{0};
  const auto errors = on_ranks(4, {{}}, options, [&](int rank, Communicator& communicator) {
    communicator.add_group({7, "tp0", all_of(4)});
    std::vector<float> values(5);
    Collective sum{.group = 7, .label = "gradients of block 3"};
    sum.input = sum.output = reinterpret_cast<std::byte*>(values.data());
    sum.spec.counts = {5};
    sum.spec.algorithm = Algorithm::ring;
    const auto prepared = communicator.prepare(sum);
    for (int i = 0; i < 7; ++i) communicator.run(*prepared);
    if (rank == 2) {
      communicator.set_phase("loading data");
      while (ended < 3) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    try {
      communicator.run(*prepared);
    } catch (const Error&) {
      ++ended;
      throw;
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("all_reduce #7 of group 'tp0' (5 fp32 = 20 bytes, gradients of block 3)"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("missing: rank 2\n"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 2: completed 7 of 7 begun collectives"), std::string::npos) << error;
    EXPECT_NE(error.find("phase: loading data"), std::string::npos) << error;
  }
}

// Rank 1 waits for rank 0 on the one axis, which waits for rank 2 on the other.
TEST(Communicator, P105_ATimeOutNamesWhoHoldsUpWhoIsMissing) {
  std::atomic<int> ended{0};
  std::atomic<bool> waits{false};
  CommunicatorOptions options;
  options.timeout_ns = 1'000'000'000;
  const auto errors = on_ranks(3, {{}}, options, [&](int rank, Communicator& communicator) {
    std::vector<float> values(5);
    const auto prepare = [&](GroupId group) {
      Collective sum{.group = group, .patient = group == 2};
      sum.input = sum.output = reinterpret_cast<std::byte*>(values.data());
      sum.spec.counts = {5};
      return communicator.prepare(sum);
    };
    if (rank != 2) communicator.add_group({1, "near", {0, 1}});
    if (rank != 1) communicator.add_group({2, "far", {0, 2}});
    try {
      if (rank == 0) {
        const auto far = prepare(2);
        waits = true;
        communicator.run(*far);
      }
      while (rank == 1 && !waits) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      if (rank == 1) communicator.run(*prepare(1));
      while (rank == 2 && ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    } catch (const Error&) {
      ++ended;
      throw;
    }
  });
  EXPECT_NE(errors[1].find("missing: rank 0, held up by rank 2\n"), std::string::npos) << errors[1];
  EXPECT_NE(errors[1].find("rank 2: completed 0 of 0 begun collectives"), std::string::npos) << errors[1];
}

TEST(Communicator, P97_GivingUpEndsAllRanksAtOnceAndForGood) {
  const int64_t begin = monotonic_ns();
  CommunicatorOptions options;
  options.timeout_ns = 60'000'000'000;
  const auto errors = on_ranks(4, {{}}, options, [&](int rank, Communicator& communicator) {
    CpuDevice device;
    Stream& stream = device.create_stream("communication", 1);
    communicator.add_group({0, "all", all_of(4)});
    std::vector<float> values(50'000);
    Collective sum{.group = 0};
    sum.input = sum.output = reinterpret_cast<std::byte*>(values.data());
    sum.spec.counts = {50'000};
    const auto prepared = communicator.prepare(sum);
    communicator.start(*prepared, stream);
    stream.synchronize();
    if (rank == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      communicator.abort("out of paper");
    }
    std::string first;
    try {
      communicator.start(*prepared, stream);
      stream.synchronize();
    } catch (const Error& error) {
      first = error.message();
    }
    EXPECT_NE(first.find("rank 2: out of paper"), std::string::npos) << first;
    EXPECT_NO_THROW(stream.synchronize());
    communicator.start(*prepared, stream);
    stream.synchronize();
  });
  for (const std::string& error : errors) {
    EXPECT_EQ(error.substr(0, 20), "rank 2: out of paper") << error;
    EXPECT_NE(error.find(" was at all_reduce #2 of group 'all'"), std::string::npos) << error;
  }
  EXPECT_LT(seconds_of(monotonic_ns() - begin), 30);  // not the time-out
}

TEST(Communicator, DifferentCountsOfOneCollectiveAreReported) {
  const auto errors = on_ranks(2, {{}}, {}, [&](int rank, Communicator& communicator) {
    communicator.add_group({0, "all", {0, 1}});
    std::vector<float> values(8);
    Collective sum{.group = 0};
    sum.input = sum.output = reinterpret_cast<std::byte*>(values.data());
    sum.spec.counts = {7 + rank};
    communicator.run(*communicator.prepare(sum));
  });
  EXPECT_NE((errors[0] + errors[1]).find("not to the same counts, types or algorithm"), std::string::npos);
}

TEST(Communicator, RefusesWhatMakesNoSense) {
  ThreadNetwork network(2);
  const auto communicator = make_communicator(network.attach(0), {});
  EXPECT_THROW(communicator->add_group({0, "not mine", {1}}), Error);
  EXPECT_THROW(communicator->add_group({0, "twice", {0, 0}}), Error);
  EXPECT_THROW(communicator->add_group({0, "nobody", {0, 2}}), Error);
  communicator->add_group({0, "all", {0, 1}});
  EXPECT_NO_THROW(communicator->add_group({0, "again", {0, 1}}));
  EXPECT_THROW(communicator->add_group({0, "other members", {1, 0}}), Error);
  const auto refuses = [&](auto change) {
    Collective collective{.group = 0};
    collective.spec.counts = {4};
    change(collective.spec);
    EXPECT_THROW(communicator->prepare(collective), Error);
  };
  refuses([](CollectiveSpec& spec) { spec.counts = {}; });
  refuses([](CollectiveSpec& spec) { spec.counts = {-1}; });
  refuses([](CollectiveSpec& spec) { spec.kind = CollectiveKind::all_gather; });
  refuses([](CollectiveSpec& spec) { spec.dtype = spec.wire = DType::u8; });
  refuses([](CollectiveSpec& spec) { spec.wire = DType::fp64; });
  refuses([](CollectiveSpec& spec) { spec.wire = DType::int32; });
  refuses([](CollectiveSpec& spec) { spec.kind = CollectiveKind::broadcast, spec.root = 2; });
  refuses([](CollectiveSpec& spec) { spec.kind = CollectiveKind::send, spec.root = 0; });
}

TEST(Communicator, P93_GroupsUsedInDifferentOrderAreReportedWithBothOrders) {
  const auto errors = on_ranks(2, {{}}, {}, [](int rank, Communicator& communicator) {
    communicator.add_group({1, "one", {0, 1}});
    communicator.add_group({2, "two", {0, 1}});
    Collective collective;
    collective.spec = example_specs(CollectiveKind::all_reduce, 2, 4, Algorithm::automatic, 0)[0];
    std::vector<float> values(4);
    collective.input = collective.output = reinterpret_cast<std::byte*>(values.data());
    for (const GroupId group : rank == 0 ? std::vector<GroupId>{1, 2} : std::vector<GroupId>{2, 1}) {
      collective.group = group;
      communicator.run(*communicator.prepare(collective));
    }
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("'one'"), std::string::npos) << error;
    EXPECT_NE(error.find("'two'"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 0: completed 0 of 1"), std::string::npos) << error;
    EXPECT_NE(error.find("rank 1: completed 0 of 1"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace athanor
