// Rows of the option table about ranks, and what they must fulfil together.
//
// Called by run_options.cpp. Thread safety: as run_options.h.
#pragma once

#include "athanor/cli/options.h"
#include "athanor/train/options.h"

namespace athanor {

// mesh.* and comm.*
void add_mesh_rows(OptionTable& table, RunOptions& options);

// User error, with the arithmetic: a batch that the mesh does not divide, more ranks than there can be, a
// model or sequence that cannot be laid out so, options that need an axis that the mesh does not have.
void validate_mesh(const RunOptions& options);

}  // namespace athanor
