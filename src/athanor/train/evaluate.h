// How well a model predicts a text: loss, perplexity and bits per byte over a source of tokens.
//
// Called by `athanor evaluate`. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>

#include "athanor/data/token_source.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/train/engine.h"

namespace athanor {

struct EvaluateOptions {
  // Tokens that a window moves on by; 0: its length. Of every window but the first only the last `stride`
  // tokens are scored, so that each has at least sequence_length - stride tokens before it.
  int64_t stride = 0;
  TokenRange range = {};   // of the source; empty: all of it
  int64_t max_tokens = 0;  // from the beginning of the range; 0: all
  // As the model was trained: see BatchOptions.
  bool reset_positions = false, mask_documents = false;
};

struct Scores {
  double loss_sum = 0;  // natural logarithms
  int64_t tokens = 0;   // scored
  int64_t bytes = -1;   // of text that these tokens stand for; -1: not known

  double loss() const;  // mean over tokens
  double perplexity() const;
  double bits_per_byte() const;  // NaN where bytes are not known or none
};

// Scores every token of the range but the first, each once; what a source marks as not to be learned is left
// out. Sums over all tokens are divided once, so the engine's validation_micro_batch changes rounding only.
// With a tokenizer the bytes of the scored tokens are counted; special tokens have none. `progress` (may be
// empty) is told tokens scored and to score, and ends the evaluation with what there is by returning false.
// The engine needs a validate program. User error: a source of fewer than two tokens, one with ids beyond the
// model's vocabulary. All ranks of the engine's mesh call it: each reads the windows, and the places of them,
// that are its own, and every rank has the scores of all.
Scores evaluate(Engine& engine, const TokenSource& source, const EvaluateOptions& options,
                const Tokenizer* tokenizer,
                const std::function<bool(int64_t done, int64_t total)>& progress = {});

}  // namespace athanor
