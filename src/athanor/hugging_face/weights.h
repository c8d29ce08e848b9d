// Weights in a folder of Hugging Face's form, read by our names and in our layout.
//
// Called by import and by whoever starts from such a folder. Errors: user errors that name the folder and the
// tensors. Thread safety: const functions may be called from several threads.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/checkpoint/safetensors_shards.h"
#include "athanor/checkpoint/weight_reader.h"
#include "athanor/hugging_face/config.h"
#include "athanor/hugging_face/names.h"

namespace athanor {

class HuggingFaceWeights final : public WeightReader {
 public:
  // Reads config.json and the headers of the weights, and checks that every parameter of the model is there
  // in its shape, and nothing else that would count. Checksums, which only files of ours have, are compared.
  static HuggingFaceWeights open(FileEnvironment& files, const std::string& folder);

  const HuggingFaceConfig& config() const { return config_; }
  const std::vector<std::string>& notes() const { return notes_; }

  const std::string& path() const override { return folder_; }
  std::span<const WeightEntry> entries() const override { return entries_; }
  void read(const WeightEntry& entry, DType dtype, std::span<std::byte> out) const override;

 private:
  // Where a logical parameter lies.
  struct Source {
    SafetensorsShards::Tensor tensor;
    bool transposed = false;
    int64_t first = 0;  // output of the stored tensor that is the parameter's first
  };

  HuggingFaceWeights(std::string folder, HuggingFaceConfig config, SafetensorsShards shards);
  void place();
  void refuse_contradicting_head(const SafetensorsShards::Tensor& head, const std::string& embedding) const;

  std::string folder_;
  HuggingFaceConfig config_;
  SafetensorsShards shards_;
  std::vector<WeightEntry> entries_;
  std::map<std::string, Source, std::less<>> sources_;
  std::vector<std::string> notes_;
};

}  // namespace athanor
