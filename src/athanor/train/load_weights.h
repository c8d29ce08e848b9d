// The weights of a model that is to be used as it is: to continue texts, to be evaluated.
//
// Called by commands, and by initialise_from.h. Thread safety: one thread.
#pragma once

#include <optional>

#include "athanor/checkpoint/weight_reader.h"
#include "athanor/train/engine.h"

namespace athanor {

// True for a source with averaged weights ("average.NAME").
bool has_averages(const WeightReader& source);

// Fills the engine's weights by logical name in the type it has them in, each straight from its source;
// `averages`: the averaged ones. User errors that list the tensors: one that is missing or of another shape
// (before anything is changed), or with a value that is not finite.
void load_weights(Engine& engine, const WeightReader& source, bool averages);

// Fills what this rank has of a tensor, from an entry of its shape. Returns the first value of the whole
// tensor that is not finite, if there is one.
struct BadValue {
  int64_t index = 0;
  double value = 0;
};
std::optional<BadValue> read_tensor(const WeightReader& source, const WeightEntry& entry,
                                    const NamedTensor& tensor);

}  // namespace athanor
