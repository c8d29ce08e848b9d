#include "athanor/cluster/rendezvous.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <thread>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/store/store_server.h"

namespace athanor {
namespace {

StoreOptions client_of(const StoreServer& server, int rank) {
  return {.address = {.redis = false, .host = "127.0.0.1", .port = server.port()},
          .secret = Secret("test"),
          .rank = rank};
}

HostAddress address_of(int rank, int per_host, uint64_t generation = 1) {
  return {.rank = rank,
          .generation = generation,
          .host = "host" + std::to_string(rank / per_host),
          .process = 100 + rank,
          .segment = 3,
          .address = "10.0.0.1",
          .port = 4000};
}

Mesh mesh(int replica, int shard, int context, int tensor) {
  Mesh mesh;
  mesh.sizes = {1, replica, shard, context, tensor, 1, 1};
  return mesh;
}

TEST(Rendezvous, NeighboursAreThoseThatDifferOnOneAxisOnly) {
  const Mesh all = mesh(2, 3, 2, 4);
  for (int rank = 0; rank < all.ranks(); ++rank) {
    const Coordinates own = coordinates_of(all, rank);
    const auto ranges = axis_neighbours(all, rank);
    for (int peer = 0; peer < all.ranks(); ++peer) {
      const Coordinates other = coordinates_of(all, peer);
      int different = 0;
      for (size_t axis = 0; axis < other.size(); ++axis) different += own[axis] != other[axis] ? 1 : 0;
      const auto holding = std::count_if(ranges.begin(), ranges.end(), [&](const MemberRange& range) {
        return range.holds(static_cast<uint32_t>(peer));
      });
      EXPECT_EQ(holding, different == 0 ? 4 : different == 1 ? 1 : 0) << rank << " and " << peer;
    }
  }
  EXPECT_TRUE(axis_neighbours(mesh(1, 1, 1, 1), 0).empty());
}

TEST(Rendezvous, SixtyFourRanksFindEachOther) {
  const StoreServer server({.secret = Secret("test")});
  RendezvousOptions options;
  options.mesh = mesh(2, 4, 2, 4);
  options.timeout_ns = 60'000'000'000;
  std::atomic<int> right{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 64; ++rank)
    ranks.emplace_back([&, rank] {
      const auto store = connect_store(client_of(server, rank));
      const auto book = meet(*store, address_of(rank, 8), options);
      bool good = true;
      for (int peer = 0; peer < 64; ++peer) good = good && book->address_of(peer) == address_of(peer, 8);
      const std::vector<int> hosts = book->hosts(8);
      for (int peer = 0; peer < 64; ++peer) good = good && hosts[static_cast<size_t>(peer)] == peer / 8;
      right += good ? 1 : 0;
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(right, 64);
  // One message each way, whatever they need.
  EXPECT_EQ(server.counts().requests, 64);
  EXPECT_EQ(server.counts().replies, 64);
}

// Of a large job a rank gets its neighbours, and others when it asks.
TEST(Rendezvous, OfALargeJobARankKnowsItsNeighboursAndAsksForOthers) {
  const StoreServer server({.secret = Secret("test")});
  RendezvousOptions options;
  options.mesh = mesh(1, 256, 1, 8);
  options.timeout_ns = 2'000'000'000;
  const auto everybody = connect_store(client_of(server, 0));
  Gathering all = rendezvous_request(address_of(0, 8), options);
  EXPECT_EQ(all.wanted.size(), 2u);
  all.wanted.clear();
  for (int rank = 1; rank < 2047; ++rank) all.values.push_back(to_text(address_of(rank, 8)));
  everybody->gather(all, 0);
  const auto store = connect_store(client_of(server, 9));
  const auto book = meet(*store, address_of(9, 8), options);
  EXPECT_EQ(book->known(), 264u);
  for (const int peer : {8, 15, 1, 2041}) EXPECT_EQ(book->address_of(peer), address_of(peer, 8));
  const int64_t before = server.counts().requests;
  EXPECT_EQ(book->address_of(500), address_of(500, 8));
  EXPECT_EQ(book->address_of(500), address_of(500, 8));
  EXPECT_EQ(server.counts().requests, before + 1);
  EXPECT_EQ(book->hosts(8)[2047], 255);
  EXPECT_THROW(book->hosts(16), Error);
  // The last one never came.
  try {
    book->address_of(2047);
    ADD_FAILURE() << "found nobody";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("one peer has not come: rank 2047"), std::string::npos) << error.message();
  }
}

TEST(Rendezvous, P89_WhoIsMissingAtStartUpIsNamed) {
  const StoreServer server({.secret = Secret("test")});
  RendezvousOptions options;
  options.mesh = mesh(1, 8, 1, 1);
  options.timeout_ns = 2'000'000'000;
  std::vector<std::thread> ranks;
  std::atomic<int> named{0};
  for (const int rank : {0, 1, 2, 4, 6, 7})
    ranks.emplace_back([&, rank] {
      const auto store = connect_store(client_of(server, rank));
      const int64_t begin = monotonic_ns();
      try {
        meet(*store, address_of(rank, 8), options);
      } catch (const Error& error) {
        const bool right = error.kind() == ErrorKind::restart_worker &&
                           error.message().find(fmt::format("rank {} of 8 has waited 2.0 s, and 2 peers have "
                                                            "not come: ranks 3, 5",
                                                            rank)) != std::string::npos;
        named += right && monotonic_ns() - begin < 20'000'000'000 ? 1 : 0;
      }
    });
  for (std::thread& rank : ranks) rank.join();
  EXPECT_EQ(named, 6);
}

TEST(Rendezvous, GenerationsAndJobsDoNotMeet) {
  const StoreServer server({.secret = Secret("test")}), other({.secret = Secret("test")});
  RendezvousOptions options;
  options.mesh = mesh(1, 2, 1, 1);
  options.timeout_ns = 60'000'000'000;
  const auto first = connect_store(client_of(server, 0)), second = connect_store(client_of(server, 1));
  std::thread meets([&] { meet(*first, address_of(0, 2), options); });
  EXPECT_EQ(meet(*second, address_of(1, 2), options)->address_of(0), address_of(0, 2));
  meets.join();
  // The same rank again, from another process.
  HostAddress again = address_of(1, 2);
  again.process = 999;
  EXPECT_THROW(meet(*second, again, options), Error);
  options.timeout_ns = 200'000'000;  // for those who will not come
  options.generation = 2;
  EXPECT_THROW(meet(*second, address_of(1, 2, 2), options), Error);
  options.generation = 1;
  const auto elsewhere = connect_store(client_of(other, 1));
  EXPECT_THROW(meet(*elsewhere, address_of(1, 2), options), Error);
}

}  // namespace
}  // namespace athanor
