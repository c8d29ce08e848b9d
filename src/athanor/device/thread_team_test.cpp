#include "athanor/device/thread_team.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <set>
#include <stdexcept>
#include <thread>
#include <vector>

#include "athanor/base/error.h"

namespace athanor {
namespace {

TEST(ThreadTeam, CallsEveryTileOnce) {
  for (const int threads : {1, 2, 3, 8}) {
    ThreadTeam team(threads);
    EXPECT_EQ(team.size(), threads);
    for (const int64_t tiles : {0, 1, 2, 3, 7, 100, 1000}) {
      std::vector<int> calls(static_cast<size_t>(tiles));  // plain: two threads on one tile are a race
      std::atomic<int> bad_threads{0};
      team.parallel_for(tiles, [&](int64_t tile, int thread) {
        ++calls[static_cast<size_t>(tile)];
        if (thread < 0 || thread >= threads) ++bad_threads;
      });
      EXPECT_EQ(calls, std::vector<int>(static_cast<size_t>(tiles), 1));
      EXPECT_EQ(bad_threads, 0);
    }
  }
}

TEST(ThreadTeam, OneThreadRunsInOrderOnTheCaller) {
  ThreadTeam team(1);
  std::vector<int64_t> order;
  const auto caller = std::this_thread::get_id();
  team.parallel_for(5, [&](int64_t tile, int) {
    EXPECT_EQ(std::this_thread::get_id(), caller);
    order.push_back(tile);
  });
  EXPECT_EQ(order, (std::vector<int64_t>{0, 1, 2, 3, 4}));
}

TEST(ThreadTeam, ThreadIndicesNameThreads) {
  ThreadTeam team(3);
  std::vector<std::set<std::thread::id>> seen(3);
  for (int round = 0; round < 50; ++round)
    team.parallel_for(6, [&](int64_t, int thread) {
      seen[static_cast<size_t>(thread)].insert(std::this_thread::get_id());
      std::this_thread::yield();
    });
  for (const auto& ids : seen) EXPECT_LE(ids.size(), 1U);
  EXPECT_EQ(seen[0], std::set<std::thread::id>{std::this_thread::get_id()});
}

TEST(ThreadTeam, TilesRunAtTheSameTime) {
  ThreadTeam team(3);
  std::atomic<int> arrived{0};
  team.parallel_for(3, [&](int64_t, int) {  // ends only if all three threads take a tile each
    ++arrived;
    while (arrived < 3) std::this_thread::yield();
  });
  EXPECT_EQ(arrived, 3);
}

// Writes of one call are seen by the next, whichever thread runs the tile.
TEST(ThreadTeam, CallsAreOrdered) {
  for (const int threads : {2, 5}) {
    ThreadTeam team(threads);
    std::vector<int64_t> values(64, 0);
    for (int64_t round = 0; round < 2000; ++round)
      team.parallel_for(8, [&](int64_t tile, int) {
        for (size_t i = 0; i < 8; ++i) values[(static_cast<size_t>(tile + round) % 8) * 8 + i] += round;
      });
    EXPECT_EQ(values, std::vector<int64_t>(64, 1999 * 2000 / 2));
  }
}

TEST(ThreadTeam, WakesAfterSleeping) {
  ThreadTeam team(4);
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(4));
    std::atomic<int> arrived{0};
    team.parallel_for(4, [&](int64_t, int) {
      ++arrived;
      while (arrived < 4) std::this_thread::yield();
    });
  }
}

TEST(ThreadTeam, OwnerSleepsUntilALongTileEnds) {
  for (const int cores : {1, 0}) {
    ThreadTeam team(2, cores);
    std::atomic<int> arrived{0};
    std::atomic<bool> ended{false};
    team.parallel_for(2, [&](int64_t, int thread) {
      ++arrived;
      while (arrived < 2) std::this_thread::yield();
      if (thread == 0) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ended = true;
    });
    EXPECT_TRUE(ended);
  }
}

TEST(ThreadTeam, RethrowsTheFirstExceptionAndGoesOn) {
  for (const int threads : {1, 2, 4}) {
    ThreadTeam team(threads);
    for (int round = 0; round < 100; ++round) {
      EXPECT_THROW(team.parallel_for(20,
                                     [&](int64_t tile, int) {
                                       if (tile >= 5) throw std::runtime_error("tile");
                                     }),
                   std::runtime_error);
      std::atomic<int> calls{0};
      team.parallel_for(20, [&](int64_t, int) { ++calls; });
      EXPECT_EQ(calls, 20);
    }
  }
}

TEST(Cores, SixtyFourForEachAreTooMany) {
  const int most = 64 * available_cores();
  EXPECT_NO_THROW(refuse_too_many(most - 1, "things", "fewer things"));
  try {
    refuse_too_many(most, "things", "fewer things");
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_EQ(error.message(),
              fmt::format("{} things on a machine that has {} cores for them", most, available_cores()));
    EXPECT_EQ(error.hint(), "fewer than 64 for each core: fewer things");
  }
}

TEST(ThreadTeam, StartsAndEndsWithoutWork) {
  for (int round = 0; round < 20; ++round) ThreadTeam team(1 + round % 4, 1 + round % 3);
}

}  // namespace
}  // namespace athanor
