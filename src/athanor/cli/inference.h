// What the commands that use a model as it is have in common: its weights, its tokenizer, an engine.
//
// Called by `athanor generate` and `athanor evaluate`. Errors: user errors. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "athanor/checkpoint/weight_reader.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/inference_ranks.h"
#include "athanor/model/config.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/train/engine.h"
#include "athanor/train/options.h"

namespace athanor {

struct Inference {
  std::string path;
  ModelConfig model;
  std::shared_ptr<const WeightReader> weights;
  std::shared_ptr<const Tokenizer> tokenizer;  // none: the model's is not known
  std::vector<int32_t> end_ids;                // that end a text
  std::optional<RunOptions> run;               // where the model is a run's
  int64_t trained_length = 0;                  // tokens of a training sample; 0: not known
  Precision precision = Precision::fp32;
  bool averages = false;  // the averaged weights are used
  int threads = 0;

  // With the model, its precision and no programs.
  EngineOptions engine_options() const;
};

// Opens the model and notes what is noteworthy.
Inference open_inference(const InferenceArguments& arguments, const InferenceRanks& ranks);
void require_tokenizer(const Inference& inference);  // user error without one
// Allocates on all ranks, and loads the weights.
std::unique_ptr<Engine> load_engine(const Inference& inference, EngineOptions options,
                                    const InferenceRanks& ranks);

}  // namespace athanor
