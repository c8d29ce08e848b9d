// Which part of a run's batches a rank has, and whether the job fits the mesh.
//
// Called by the loops and by commands. Thread safety: pure functions.
#pragma once

#include "athanor/data/batch_part.h"
#include "athanor/train/options.h"

namespace athanor {

// User error, with the arithmetic, unless the job has as many ranks as the mesh.
void require_ranks(const Mesh& mesh, int64_t ranks);

// The sequence length to compile for: that of the samples, rounded up to sequence_granule.
int64_t padded_sequence(const LayoutOptions& layout, int64_t sequence_length);

// Of micro-batches of `micro_batch` samples on each rank with samples of its own, cut as the model's layout
// cuts the batch. `sequence_length` is that of the samples; user error when the model has fewer positions.
BatchPart batch_part(const ModelConfig& model, const LayoutOptions& layout, int32_t rank, int64_t micro_batch,
                     int64_t sequence_length);

}  // namespace athanor
