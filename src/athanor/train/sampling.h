// Draws the next token from a model's prediction.
//
// Called by generate.h. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <span>

#include "athanor/base/philox.h"

namespace athanor {

struct SamplingOptions {
  double temperature = 0.8;  // 0: always the likeliest, the first of equals
  int64_t top_k = 0;         // draw among this many likeliest; 0: all
  double top_p = 1;          // then among the fewest likeliest whose probabilities add up to this
  uint64_t seed = 0;
};

// Index drawn from the softmax of logits / temperature, with the random number `draw` of `key`. Infinite
// logits are taken as they are; with one that is not a number it throws Error(stop_job).
int32_t draw_token(std::span<const double> logits, const SamplingOptions& options, const RandomKey& key,
                   int64_t draw);

}  // namespace athanor
