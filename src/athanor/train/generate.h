// Writes text with a model: one token at a time, each drawn from the model's prediction.
//
// Called at the end of training and by `athanor generate`. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "athanor/train/engine.h"

namespace athanor {

struct GenerateOptions {
  int64_t length = 300;      // tokens to write
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 0;         // draw among this many likeliest; 0: all
  uint64_t seed = 0;
};

// Continues `prompt` (at least one id) and hands each token to `emit`; `emit` returns false to stop. Ids
// above `vocabulary` are never drawn. The model sees at most its sequence length of the latest tokens. Needs
// an engine with a predict program.
void generate(Engine& engine, std::vector<int32_t> prompt, int64_t vocabulary, const GenerateOptions& options,
              const std::function<bool(int32_t)>& emit);

// Index drawn from logits for draw number `draw`.
int32_t draw_token(const std::vector<double>& logits, const GenerateOptions& options, int64_t draw);

}  // namespace athanor
