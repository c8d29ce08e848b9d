// A job of several processes as a person starts it: the same losses as one process, one report when a rank
// fails, nothing left behind.

#include "support/launch.h"

#include <gtest/gtest.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>

#include "athanor/base/clock.h"
#include "athanor/device/thread_team.h"

namespace athanor {
namespace {

TEST_F(Launch, RanksTrainAsOneProcessDoes) {
  const auto run = [&](const std::string& name, const std::vector<std::string>& more) {
    std::vector<std::string> all = {"--set", "train.steps=5"};
    all.insert(all.end(), more.begin(), more.end());
    const ProgramResult result = run_and_wait(train(name, all), folder_.path());
    EXPECT_EQ(result.exit_code, 0) << result.errors;
    return losses(name);
  };
  const std::vector<double> one = run("one", {});
  ASSERT_EQ(one.size(), 5U);
  for (const auto& more : std::vector<std::vector<std::string>>{
           {"--ranks", "2"},
           {"--set", "mesh.tensor=2"},
           {"--set", "mesh.shard=2", "--set", "mesh.replica=2", "--set", "mesh.zero=3"}}) {
    const std::vector<double> many = run("many" + more.back().substr(0, 4), more);
    ASSERT_EQ(many.size(), one.size());
    for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(many[i], one[i], 1e-5 * one[i]);
  }
}

// Model and optimizer cut over four ranks; each is killed once, at another moment of a step.
TEST_F(Launch, ARankThatIsKilledEndsAll) {
  for (const size_t lost : {3U, 0U, 2U}) {
    const std::string name = fmt::format("lost-{}", lost);
    BackgroundProgram program(train(name, {"--set", "mesh.tensor=2", "--set", "mesh.shard=2", "--set",
                                           "mesh.zero=3", "--set", "train.steps=1G"}),
                              folder_.path());
    ASSERT_TRUE(program.wait_until([&] { return has_steps(name); }));
    const std::vector<pid_t> ranks = children(program.process());
    ASSERT_EQ(ranks.size(), 4U);
    usleep(static_cast<useconds_t>(1000 * (7 * lost + 1)));
    const int64_t begin = monotonic_ns();
    kill(ranks[lost], SIGKILL);
    const ProgramResult result = program.wait(60);
    EXPECT_LT(seconds_of(monotonic_ns() - begin), 10);
    EXPECT_EQ(result.exit_code, 4) << result.errors;
    const std::string report =
        fmt::format("rank {} of 4 (process {}) was killed by signal 9", lost, ranks[lost]);
    EXPECT_NE(result.errors.find(report), std::string::npos) << result.errors;
    EXPECT_EQ(occurrences(result.errors, "athanor: "), 1) << result.errors;
    for (const pid_t rank : ranks) EXPECT_FALSE(is_alive(rank));
    EXPECT_FALSE(std::filesystem::exists(folder_.path("runs/" + name + "/checkpoints/latest")));
  }
}

TEST_F(Launch, RanksDoNotOutliveTheirLauncher) {
  std::vector<pid_t> ranks;
  {
    BackgroundProgram program(train("a", {"--ranks", "2", "--set", "train.steps=1G"}), folder_.path());
    ASSERT_TRUE(program.wait_until([&] { return has_steps("a"); }));
    ranks = children(program.process());
    program.send(SIGKILL);
    EXPECT_EQ(program.wait(60).signal, SIGKILL);
  }
  ASSERT_EQ(ranks.size(), 2U);
  const int64_t until = monotonic_ns() + 60'000'000'000;
  const auto any_alive = [&] { return std::ranges::any_of(ranks, is_alive); };
  while (any_alive() && monotonic_ns() < until) usleep(10'000);
  EXPECT_FALSE(any_alive());
}

TEST_F(Launch, TermSavesOnceAndAllRanksEnd) {
  BackgroundProgram program(train("a", {"--ranks", "2", "--set", "train.steps=1G"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return has_steps("a"); }));
  program.send(SIGTERM);
  const ProgramResult result = program.wait(60);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("goes on"), std::string::npos) << result.output;
  EXPECT_TRUE(std::filesystem::exists(folder_.path("runs/a/checkpoints/latest")));
}

// Ranks that do not train yet have nothing to save, and go on.
TEST_F(Launch, ASaveMayBeAskedForBeforeThereIsAnything) {
  BackgroundProgram program(train("a", {"--ranks", "2", "--set", "train.steps=2"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return children(program.process()).size() == 2; }));
  program.send(SIGUSR1);
  const ProgramResult result = program.wait(60);
  EXPECT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(losses("a").size(), 2U);
}

// The others give up because of it, and may be the first to be gone.
TEST_F(Launch, TheRankThatFailedByItselfIsBlamed) {
  for (int round = 0; round < 5; ++round) {
    const ProgramResult result = run_and_wait(
        {ATHANOR_PROGRAM, "generate", "nothing", "--prompt", "x", "--ranks", "4"}, folder_.path());
    EXPECT_EQ(result.exit_code, 2) << result.errors;
    EXPECT_TRUE(result.errors.starts_with("athanor: rank ")) << result.errors;
    EXPECT_NE(result.errors.find(" of 4: there is no 'nothing'"), std::string::npos) << result.errors;
  }
}

char state_of(pid_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const size_t end = text.rfind(')');
  return end == std::string::npos || end + 2 >= text.size() ? '?' : text[end + 2];
}

TEST_F(Launch, AJobThatIsPutAsideGoesOn) {
  BackgroundProgram program(train("a", {"--ranks", "2", "--set", "train.steps=1G"}), folder_.path());
  ASSERT_TRUE(program.wait_until([&] { return has_steps("a"); }));
  std::vector<pid_t> processes = children(program.process());
  ASSERT_EQ(processes.size(), 2U);
  processes.push_back(program.process());
  program.send(SIGTSTP);
  EXPECT_TRUE(program.wait_until(
      [&] { return std::ranges::all_of(processes, [](pid_t each) { return state_of(each) == 'T'; }); }));
  const size_t before = losses("a").size();
  program.send(SIGCONT);
  EXPECT_TRUE(program.wait_until([&] { return losses("a").size() > before + 1; }));
  program.send(SIGTERM);
  EXPECT_EQ(program.wait(60).exit_code, 0);
}

TEST_F(Launch, WhatIsTypedReachesRanks) {
  ASSERT_EQ(run_and_wait(train("a", {"--set", "train.steps=1"}), folder_.path()).exit_code, 0);
  int terminal = -1;
  const std::string folder = folder_.path();
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    if (chdir(folder.c_str()) == 0)
      execl(ATHANOR_PROGRAM, ATHANOR_PROGRAM, "generate", "runs/a", "--file", "-", "--max-tokens", "1",
            "--ranks", "2", static_cast<char*>(nullptr));
    _exit(127);
  }
  ASSERT_GT(child, 0);
  constexpr std::string_view typed = "Line 1\nLine 2\n\4";
  ASSERT_EQ(write(terminal, typed.data(), typed.size()), static_cast<ssize_t>(typed.size()));
  std::string shown;
  std::array<char, 4096> buffer;
  for (ssize_t got = 0; (got = read(terminal, buffer.data(), buffer.size())) > 0;)
    shown.append(buffer.data(), static_cast<size_t>(got));
  int status = 0;
  waitpid(child, &status, 0);
  close(terminal);
  EXPECT_EQ(status, 0) << shown;
  EXPECT_NE(shown.find("---"), std::string::npos) << shown;  // between two texts
  EXPECT_NE(shown.find("2 tokens in"), std::string::npos) << shown;
}

TEST_F(Launch, NumbersThatDoNotFitAreRefused) {
  ProgramResult result = run_and_wait(train("a", {"--ranks", "3", "--set", "mesh.shard=2"}), folder_.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("--ranks 3, but the mesh has 2 ranks"), std::string::npos) << result.errors;
  result = run_and_wait(train("a", {"--ranks", "3"}), folder_.path());
  EXPECT_EQ(result.exit_code, 2);
  EXPECT_NE(result.errors.find("is not a multiple of 3 samples"), std::string::npos) << result.errors;
  EXPECT_FALSE(std::filesystem::exists(folder_.path("runs")));
}

TEST_F(Launch, MoreRanksThanAMachineCanBearAreNotStarted) {
  const std::string ranks = std::to_string(64 * available_cores());
  for (const std::string command : {"generate", "evaluate"}) {
    const ProgramResult result =
        run_and_wait({ATHANOR_PROGRAM, command, "nothing", "--ranks", ranks}, folder_.path());
    EXPECT_EQ(result.exit_code, 2);
    EXPECT_NE(result.errors.find(ranks + " ranks on a machine that has "), std::string::npos)
        << result.errors;
  }
}

}  // namespace
}  // namespace athanor
