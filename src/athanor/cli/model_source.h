// Whatever a model can be read from: a run, one checkpoint, an imported folder, a folder in Hugging Face's
// form.
//
// Called by the commands that export, fine-tune and generate. Errors: user errors with the path. Thread
// safety: one thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/checkpoint/weight_reader.h"
#include "athanor/cli/options.h"
#include "athanor/cli/run_options.h"
#include "athanor/hugging_face/config.h"
#include "athanor/model/config.h"
#include "athanor/tokenizer/tokenizer.h"
#include "athanor/train/trainer.h"

namespace athanor {

struct ModelSource {
  ModelConfig model;
  std::shared_ptr<const WeightReader> weights;
  int64_t updates = 0;             // that the optimizer's state has seen; 0: there is none
  std::string tokenizer;           // what open_tokenizer takes for the one that goes with it; empty: none
  std::string tokenizer_json;      // its text, where the checkpoint holds it
  SpecialTokenIds tokens;          // where the source says them
  std::vector<std::string> notes;  // what a person should know
};

// Opens and checks `path`: the latest sound checkpoint of a run's folder or of an imported one, a checkpoint
// file, or a folder with config.json and safetensors files.
ModelSource open_model_source(FileEnvironment& files, const std::string& path);
// The model and the tokenizer only; reads no weights.
ModelSource describe_model_source(FileEnvironment& files, const std::string& path);

// The tokenizer of a source; null if it has none. User error for one that is not understood.
std::shared_ptr<const Tokenizer> tokenizer_of(FileEnvironment& files, const ModelSource& source);

// Every model.* option as a TOML table.
std::string model_toml(const ModelConfig& model);

// The options of a run from its file and settings, over those of the models that model.base and
// train.init_from name.
void load_run_options(RunConfiguration& run, FileEnvironment& files, const std::string& file,
                      const std::vector<std::string>& settings);

// Opens train.init_from for a run. Refuses, with both values, a model of another structure; other differences
// of what is computed are notes.
InitialWeights open_initial_weights(FileEnvironment& files, const RunOptions& options);

}  // namespace athanor
