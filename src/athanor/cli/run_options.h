// The options of a run: every field of RunOptions as a row of the option table.
//
// Called by the commands of `cli`. Thread safety: one thread at a time per table.
#pragma once

#include "athanor/cli/options.h"
#include "athanor/train/options.h"

namespace athanor {

// Adds the rows. `model.family` leads (its defaults come before any other model option), `model.base` names
// the file in configs/models that the other model options are read over. Both arguments must stay where they
// are.
void add_run_options(OptionTable& table, RunOptions& options);

// What no single row can refuse (user error): options that contradict each other, sizes whose memory no
// machine has (so that later arithmetic on bytes cannot overflow), steps of more calls than a program can
// hold.
void validate(const RunOptions& options);

// Options with their table.
struct RunConfiguration {
  RunOptions options;
  OptionTable table;
  RunConfiguration() { add_run_options(table, options); }
  RunConfiguration(const RunConfiguration&) = delete;
  RunConfiguration& operator=(const RunConfiguration&) = delete;
};

}  // namespace athanor
