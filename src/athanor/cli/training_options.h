// Rows of the option table about learning: the loop, the update, and what watches over them.
//
// Called by run_options.cpp. Thread safety: as run_options.h.
#pragma once

#include "athanor/cli/options.h"
#include "athanor/train/options.h"

namespace athanor {

// train.*
void add_train_rows(OptionTable& table, RunOptions& run);

// optimizer.*
void add_optimizer_rows(OptionTable& table, OptimizerOptions& optimizer);

// validation.*, checkpoint.*, spike.*
void add_watching_rows(OptionTable& table, RunOptions& run);

// loss_scale.*
void add_loss_scale_rows(OptionTable& table, LossScaleOptions& scale);

}  // namespace athanor
