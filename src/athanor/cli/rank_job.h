// A training job of several ranks, as the command sees it: who starts them, and how this process becomes one.
//
// Called by train_command.cpp. Thread safety: one thread.
#pragma once

#include <functional>

#include "athanor/cli/run_options.h"
#include "athanor/cluster/job_rank.h"

namespace athanor {

// Makes the run one of `ranks`: a mesh that says nothing becomes so many ranks with samples of their own.
// User error, with the arithmetic, where the mesh says another number.
void set_ranks(RunConfiguration& run, int64_t ranks);

// Whether this process is to start ranks instead of being one.
bool starts_ranks(const RunOptions& options);
// Starts this program's command again as each rank of this task, and returns when all have ended well.
void start_ranks(const RunOptions& options);

// Joins the other ranks; one rank has nobody to join. Rank 0 calls `settle`, which may choose the run's name
// and whether it is resumed; the others take over what it has chosen.
JobRank join_ranks(RunOptions& options, const std::function<void()>& settle);

// Where train.threads leaves it open, ranks of one host share its cores.
void share_cores(RunOptions& options, const JobRank& job);

}  // namespace athanor
