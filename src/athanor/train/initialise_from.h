// Weights from elsewhere as those that a run begins with: fine-tuning.
//
// Called by the training loop. Thread safety: one thread.
#pragma once

#include <cstdint>

#include "athanor/checkpoint/weight_reader.h"
#include "athanor/train/engine.h"

namespace athanor {

// Fills the engine's weights from `source` by logical name, converting types, makes the working copies and
// the averages from them, and leaves the optimizer's state as it is (fresh). With `optimizer_state` that is
// filled too, averages where the source has them. Before anything is changed, refuses (user error that lists
// the tensors with both shapes) a tensor that is missing or of another shape and a parameter that the model
// does not have; then values that are not finite.
void initialise_from(Engine& engine, const WeightReader& source, bool optimizer_state);

}  // namespace athanor
