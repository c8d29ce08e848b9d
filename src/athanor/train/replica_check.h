// Whether ranks that hold the same part of a weight, or of its optimizer state, still hold the same bits.
//
// They compute the same, so a difference is a fault of a machine or of the program, which spreads from then
// on. Called by the training loop on all ranks. Thread safety: one thread.
#pragma once

#include <span>

#include "athanor/comm/rank_messages.h"
#include "athanor/train/engine.h"

namespace athanor {

// Error(stop_job) on every rank that names the tensors and ranks that differ: of several copies those in the
// minority, of two copies both. Checksums travel, not weights.
void check_replicas(RankMessages& messages, std::span<const NamedTensor> state, int64_t step);

}  // namespace athanor
