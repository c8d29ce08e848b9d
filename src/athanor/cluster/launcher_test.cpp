// Ranks that are no ranks: what the launcher makes of their ends.

#include "athanor/cluster/launcher.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "athanor/base/clock.h"
#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/cluster/job_place.h"

namespace athanor {
namespace {

std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) children.push_back(child);
  return children;
}

// The status, of waitpid, of a launcher of two programs that sleep, once `act` was called with it and them.
template <typename Act>
int status_of_launcher(const Act& act) {
  const pid_t launcher = fork();
  if (launcher == 0) {
    LaunchOptions options;
    options.program = "/bin/sleep";
    options.arguments = {"sleep", "30"};
    options.local_ranks = options.ranks = 2;
    options.grace_ns = 100'000'000;
    try {
      launch(options);
    } catch (const Error& error) {
      _exit(error.kind() == ErrorKind::restart_worker ? 4 : 1);
    }
    _exit(0);
  }
  const int64_t deadline = monotonic_ns() + 10'000'000'000;
  while (children_of(launcher).size() < 2 && monotonic_ns() < deadline) usleep(1000);
  act(launcher, children_of(launcher));
  int status = 0;
  waitpid(launcher, &status, 0);
  return status;
}

// Before ranks train they die of what they are sent. To be restarted is not what the sender wanted.
TEST(Launcher, WhoIsAskedToEndBeforeRanksTrainEndsByTheSignal) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const int status = status_of_launcher([&](pid_t launcher, const auto&) { kill(launcher, signal); });
    EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == signal) << signal << ": " << status;
  }
}

TEST(Launcher, ARankThatSomebodyElseKillsHasFailed) {
  const int status = status_of_launcher([](pid_t, const std::vector<pid_t>& ranks) {
    ASSERT_EQ(ranks.size(), 2U);
    kill(ranks[1], SIGTERM);
  });
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 4) << status;
}

// As on a disk that is full for a while.
TEST(Launcher, WhatDoesNotFitIntoALogComesLater) {
  const TemporaryFolder folder;
  const std::string log = folder.path("logs/rank_1.log");
  const pid_t launcher = fork();
  if (launcher == 0) {
    const rlimit little{4, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    LaunchOptions options;
    options.program = "/bin/sh";
    options.arguments = {"sh", "-c",
                         fmt::format("if [ ${} = 0 ]; then echo \"folder $PWD\" >/proc/self/fd/${}; "
                                     "else echo 0123456789; while [ ! -e go ]; do sleep 0.01; done; fi",
                                     rank_variable, report_variable)};
    options.local_ranks = options.ranks = 2;
    if (chdir(folder.path().c_str()) != 0 || setrlimit(RLIMIT_FSIZE, &little) != 0) _exit(1);
    launch(options);
    _exit(0);
  }
  const int64_t deadline = monotonic_ns() + 60'000'000'000;
  std::error_code none;
  while (std::filesystem::file_size(log, none) != 4 && monotonic_ns() < deadline) usleep(1000);
  EXPECT_EQ(std::filesystem::file_size(log, none), 4U);
  const rlimit enough{RLIM_INFINITY, RLIM_INFINITY};
  EXPECT_EQ(prlimit(launcher, RLIMIT_FSIZE, &enough, nullptr), 0);
  write_file_atomically(system_files(), folder.path("go"), "");
  int status = 0;
  waitpid(launcher, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(read_file(system_files(), log, 100), "0123456789\n");
}

}  // namespace
}  // namespace athanor
