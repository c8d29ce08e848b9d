// Where a process stands in its job, as the environment says that started it: Athanor's own launcher, Slurm,
// mpirun or a Kubernetes indexed job.
//
// Called by `athanor train`. Thread safety: pure functions but for process_environment.
//
// Whatever starts processes starts tasks. A job of R ranks in T tasks has R / T ranks in each: one, and the
// task is the rank; or several, and the task starts them as processes of its own (launcher.h).
#pragma once

#include <functional>
#include <optional>
#include <string>

namespace athanor {

struct JobPlace {
  enum class Kind : uint8_t {
    alone,     // nobody else: the job's only rank, or its launcher
    task,      // one of several tasks of a job
    launched,  // a rank that Athanor's launcher has started
  };
  Kind kind = Kind::alone;
  std::string manager = {};  // "Slurm", ...: for messages
  int task = 0, tasks = 1;
  int local_tasks = 1;  // on this host; 0: not known
  int local_task = 0;   // among those
};

// Variables that Athanor's launcher sets for its ranks, and that a user may set for tasks.
inline constexpr const char* rank_variable = "ATHANOR_RANK";
inline constexpr const char* ranks_variable = "ATHANOR_RANKS";
inline constexpr const char* local_rank_variable = "ATHANOR_LOCAL_RANK";
inline constexpr const char* local_ranks_variable = "ATHANOR_LOCAL_RANKS";
inline constexpr const char* store_variable = "ATHANOR_STORE";              // as comm.store
inline constexpr const char* secret_variable = "ATHANOR_SECRET";            // of the job
inline constexpr const char* password_variable = "ATHANOR_REDIS_PASSWORD";  // where the store is Redis
inline constexpr const char* report_variable = "ATHANOR_REPORT";  // descriptor that the launcher listens to

using Environment = std::function<std::optional<std::string>(const std::string& name)>;
Environment process_environment();

// `ranks`: of the whole job. Throws a user error for numbers that are none or do not fit each other.
JobPlace recognise_place(const Environment& environment, int ranks);
// Ranks of each task. Throws a user error, with the arithmetic, if they do not divide.
int ranks_of_task(const JobPlace& place, int ranks);

// The first host of a Slurm list: "gpu[003-007,9],login" is gpu003. Empty if it is none.
std::string first_slurm_host(const std::string& list);
// Where the tasks' store is, if they are those of a Slurm step: on its first host. Empty otherwise.
std::string store_of_slurm(const Environment& environment, const JobPlace& place);

}  // namespace athanor
