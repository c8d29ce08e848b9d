// The tensors of a model as transformers names and lays them out. docs/formats/hugging_face.md.
//
// Called by the reader and the writer of weights. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/model/config.h"

namespace athanor {

// A tensor there holds one logical parameter or several that follow one another along their first dim (the
// outputs), and GPT-2's matrices are the transposes of ours.
struct ExchangedTensor {
  std::string name;            // with the prefix "transformer." or "model."
  std::vector<int64_t> shape;  // as stored
  bool transposed = false;
  struct Part {
    std::string name;  // logical
    std::vector<int64_t> shape;
  };
  std::vector<Part> parts;
};

// Every tensor of the model, in the order of its layers; each logical parameter is in exactly one. User error
// for a model that none of the known types describes (hugging_face_type_of).
std::vector<ExchangedTensor> exchanged_tensors(const ModelConfig& model);

// "transformer." or "model.": the part of the names that files of the inner model lack.
std::string_view name_prefix(const ModelConfig& model);

// True for what old files hold besides weights: attention masks, rotary frequencies.
bool is_constant_buffer(std::string_view name);

}  // namespace athanor
