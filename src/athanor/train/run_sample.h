// The text that the model writes at the end of a run.
//
// Called by the training loop. Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "athanor/checkpoint/checkpoint.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/train/engine.h"
#include "athanor/train/options.h"

namespace athanor {

// Sequences that an engine must be able to continue for it.
GenerationShape sample_shape(const RunOptions& options);

// The prompt with what follows it. `ended` is asked after each token and ends the text.
std::string write_sample(Engine& engine, const Tokenizer& tokenizer, const RunOptions& options,
                         const std::function<bool()>& ended);

// One engine that holds a model of many ranks whole, to continue texts with, from its checkpoint. User error
// when it does not fit into the memory that is left.
std::unique_ptr<Engine> reread_whole(const RunOptions& options, Checkpoint checkpoint, bool averaged);

}  // namespace athanor
