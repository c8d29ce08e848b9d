// Ranks as processes of this machine: starts them, watches them, passes signals on, and ends all when one
// fails.
//
// Called by `athanor train`. Thread safety: launch on the main thread of a process, once at a time: it takes
// over SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGTSTP and SIGCHLD while it runs. Linux.
//
// Rank 0 of the job has this process's standard output and error; what others write goes to
// FOLDER/logs/rank_N.log, once rank 0 has told the run's folder (launch_report.h), and the last of it into
// the report if they fail. A rank that fails by itself gets its message into the report, which names the
// first one that failed. The others have `grace_ns` to end by themselves, as they do when their peer is gone.
// If this process is killed, so are all ranks.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace athanor {

struct LaunchOptions {
  std::string program = "/proc/self/exe";
  std::vector<std::string> arguments;                          // with argv[0]
  std::vector<std::pair<std::string, std::string>> variables;  // added to the environment of all ranks
  int first_rank = 0, local_ranks = 1, ranks = 1;
  int64_t grace_ns = 3'000'000'000;
};

// Returns when all ranks have ended well. Throws Error with the report when one failed: of the kind that its
// exit code stands for (2 user, 3 stop_job, 5 retry_step; 4 and signals restart_worker), std::runtime_error
// for any other code. Where a rank died of a signal that was passed on (it does not train yet, or it was the
// second SIGINT), this process does too.
void launch(const LaunchOptions& options);

}  // namespace athanor
