// config.json of Hugging Face's transformers, to and from ModelConfig: GPT-2, Llama 2 and 3, Mistral.
// docs/formats/hugging_face.md.
//
// Called by import, export and whoever starts from such a folder. Errors: user errors with the path and the
// key; what the configuration asks for and a ModelConfig cannot say is refused by name. Thread safety: pure
// functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/ir/dtype.h"
#include "athanor/model/config.h"

namespace athanor {

// Ids that generation begins and ends with. Models with several ends list them all.
struct SpecialTokenIds {
  std::vector<int64_t> begin, end;
  friend bool operator==(const SpecialTokenIds&, const SpecialTokenIds&) = default;
};

struct HuggingFaceConfig {
  std::string model_type;  // "gpt2", "llama", "mistral"
  ModelConfig model;
  std::optional<DType> dtype;  // that the weights are said to have
  SpecialTokenIds tokens;
  std::vector<std::string> notes;  // what a person should know: keys that are not understood
};

HuggingFaceConfig parse_hugging_face_config(std::string_view text, const std::string& path);
HuggingFaceConfig read_hugging_face_config(FileEnvironment& files, const std::string& folder);
// True for a folder with a config.json.
bool is_hugging_face_folder(FileEnvironment& files, const std::string& folder);

// "gpt2", "llama" or "mistral". User error naming the options for which none of them fits.
std::string hugging_face_type_of(const ModelConfig& model);

// The texts of config.json and generation_config.json, with the keys of transformers 4, which 5 reads too.
std::string format_hugging_face_config(const ModelConfig& model, DType dtype, const SpecialTokenIds& tokens);
std::string format_generation_config(const SpecialTokenIds& tokens);
// What format_generation_config says.
SpecialTokenIds parse_special_token_ids(std::string_view text, const std::string& path);

}  // namespace athanor
