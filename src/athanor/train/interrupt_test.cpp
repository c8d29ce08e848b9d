#include "athanor/train/interrupt.h"

#include <gtest/gtest.h>
#include <pthread.h>

#include <csignal>
#include <thread>

#include "athanor/base/clock.h"

namespace athanor {
namespace {

int handled = 0;
extern "C" void note_signal(int number) {
  handled = number;
}

TEST(Interrupts, EachSignalAsksForWhatItStandsFor) {
  for (const auto& [number, reason] :
       {std::pair{SIGINT, "interrupted"}, {SIGTERM, "terminated"}, {SIGHUP, "the terminal was closed"}}) {
    std::signal(SIGHUP, SIG_DFL);
    const Interrupts interrupts(0, 0);
    EXPECT_EQ(interrupts.stop_reason(), "");
    std::raise(number);
    EXPECT_EQ(interrupts.stop_reason(), reason);
    EXPECT_EQ(interrupts.stop_reason(), reason);  // it does not go away
    EXPECT_FALSE(interrupts.take_save_request());
  }
}

TEST(Interrupts, SaveIsAskedForOnce) {
  const Interrupts interrupts(0, 0);
  EXPECT_FALSE(interrupts.take_save_request());
  std::raise(SIGUSR1);
  EXPECT_TRUE(interrupts.take_save_request());
  EXPECT_FALSE(interrupts.take_save_request());
  EXPECT_EQ(interrupts.stop_reason(), "");
}

TEST(Interrupts, ASignalMayComeToAnyThread) {
  const Interrupts interrupts(0, 0);
  std::thread([] { pthread_kill(pthread_self(), SIGTERM); }).join();
  EXPECT_EQ(interrupts.stop_reason(), "terminated");
}

TEST(Interrupts, WallTimeCountsFromTheBeginningOfTheRun) {
  const int64_t now = monotonic_ns();
  EXPECT_EQ(Interrupts(10, now - 11'000'000'000).stop_reason(), "wall-time limit reached");
  EXPECT_EQ(Interrupts(10, now).stop_reason(), "");
  EXPECT_EQ(Interrupts(0, 0).stop_reason(), "");
}

TEST(Interrupts, HandlersThatWereThereComeBack) {
  std::signal(SIGTERM, &note_signal);
  {
    const Interrupts interrupts(0, 0);
    std::raise(SIGTERM);
    EXPECT_EQ(handled, 0);
  }
  std::raise(SIGTERM);
  EXPECT_EQ(handled, SIGTERM);
  std::signal(SIGTERM, SIG_DFL);
  // A request to one run is none to the next.
  EXPECT_EQ(Interrupts(0, 0).stop_reason(), "");
}

TEST(Interrupts, ClosedPipesAndNohupAreNoReasonToEnd) {
  std::signal(SIGHUP, SIG_IGN);
  {
    const ClosedPipesIgnored pipes;
    const Interrupts interrupts(0, 0);
    std::raise(SIGPIPE);
    std::raise(SIGHUP);
    EXPECT_EQ(interrupts.stop_reason(), "");
  }
  std::signal(SIGHUP, SIG_DFL);
}

TEST(InterruptsDeathTest, TheSecondInterruptEndsAtOnce) {
  EXPECT_EXIT(
      {
        const Interrupts interrupts(0, 0);
        std::raise(SIGINT);
        if (interrupts.stop_reason() != "interrupted") std::_Exit(1);
        std::raise(SIGINT);
        std::_Exit(2);
      },
      testing::KilledBySignal(SIGINT), "");
}

}  // namespace
}  // namespace athanor
