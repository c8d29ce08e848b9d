// Import and export: weights from a Hugging Face folder into a checkpoint of ours, and back. One tensor at a
// time is in memory. docs/formats/hugging_face.md.
//
// Called by `athanor import` and `athanor export`. Errors: user errors. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "athanor/base/file_environment.h"
#include "athanor/checkpoint/checkpoint.h"
#include "athanor/checkpoint/safetensors_shards.h"
#include "athanor/checkpoint/weight_reader.h"
#include "athanor/hugging_face/config.h"
#include "athanor/model/config.h"

namespace athanor {

// Writes the weights, in the types they are kept in, as the checkpoint of step 0 of `folder`.
SaveReport import_weights(const WeightReader& weights, CheckpointFolder& folder,
                          const CheckpointState& state);

struct ExportOptions {
  std::optional<DType> dtype = {};  // none: as they are kept
  int64_t max_shard_bytes = 5'000'000'000;
  std::string weight_prefix = {};  // of the names in the reader: "average." for averaged weights
  SpecialTokenIds tokens = {};
  std::map<std::string, std::string> other_files = {};  // texts by name: tokenizer.json
};

// Writes config.json, generation_config.json and the weights into `folder`, which is made; config.json comes
// last, so a folder with it is whole. Refuses a model that has no such form, a missing parameter or one of
// another shape, and to write over anything. Other tensors (optimizer state) stay behind.
ShardReport export_weights(FileEnvironment& files, const WeightReader& weights, const ModelConfig& model,
                           const std::string& folder, const ExportOptions& options);

}  // namespace athanor
