// The weights of a model that is to be used as it is: to continue texts, to be evaluated.
//
// Called by commands. Thread safety: one thread.
#pragma once

#include "athanor/checkpoint/weight_reader.h"
#include "athanor/train/engine.h"

namespace athanor {

// True for a source with averaged weights ("average.NAME").
bool has_averages(const WeightReader& source);

// Fills the engine's weights by logical name in the type it has them in, each straight from its source;
// `averages`: the averaged ones. User errors that list the tensors: one that is missing or of another shape
// (before anything is changed), or with a value that is not finite.
void load_weights(Engine& engine, const WeightReader& source, bool averages);

}  // namespace athanor
