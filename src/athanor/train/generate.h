// Continues sequences with a model: one token at a time, each drawn from the model's prediction.
//
// Called at the end of training and by `athanor generate`. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "athanor/train/engine.h"
#include "athanor/train/sampling.h"

namespace athanor {

struct GenerateOptions {
  int64_t length = 300;    // tokens to write behind each prompt, at most
  int64_t vocabulary = 0;  // ids from here on are never drawn; 0: all the model has
  SamplingOptions sampling = {};
};

struct GenerateReport {
  int64_t prompt_tokens = 0, tokens = 0;
  double prompt_seconds = 0, seconds = 0;  // for the prompts, for what was written
};

// How long a sequence a model may be given: all its positions where they are rotary, else no more than it
// was trained on (`trained_length`; 0: not known).
int64_t context_limit(const ModelConfig& model, int64_t trained_length);

// Continues every prompt (at least one id each) and hands each token to emit(prompt's index, token), which
// returns false to end that sequence. As many sequences as the engine has rows are worked on at a time; the
// next prompt takes the place of one that has ended. The tokens of a prompt depend on it and on the options,
// not on the other prompts or on the number of rows: the random numbers are keyed by seed and prompt.
//
// A sequence that has filled its row goes on behind the later half of it, which is taken in anew as if it
// were the beginning. Of a prompt that does not fit only the end is seen.
GenerateReport generate(Engine& engine, std::span<const std::vector<int32_t>> prompts,
                        const GenerateOptions& options,
                        const std::function<bool(size_t prompt, int32_t token)>& emit);

}  // namespace athanor
