// Rows of the option table about the model.
//
// Called by run_options.cpp. Thread safety: as run_options.h.
#pragma once

#include "athanor/cli/options.h"
#include "athanor/train/options.h"

namespace athanor {

// model.*
void add_model_rows(OptionTable& table, RunOptions& run);

}  // namespace athanor
