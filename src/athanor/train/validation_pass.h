// One pass of a run over a validation set.
//
// Called by the training loop, on all ranks. Thread safety: one thread.
#pragma once

#include <functional>
#include <optional>

#include "athanor/data/batch_part.h"
#include "athanor/observe/report.h"
#include "athanor/train/data_sets.h"
#include "athanor/train/engine.h"

namespace athanor {

// The mean loss over at most `samples` samples (0: all) of the set, each rank computing its part. `step` is
// that of the weights. Nothing when `ended`, asked after each batch, gives it up.
std::optional<ValidationReport> validation_pass(Engine& engine, const ValidationSet& set,
                                                const BatchPart& part, int64_t samples, int64_t step,
                                                const std::function<bool()>& ended);

}  // namespace athanor
