// Tiny models, engines and batches for the tests of this room.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "athanor/train/engine.h"

namespace athanor {

inline ModelConfig tiny_model(const std::string& family) {
  ModelConfig config = family_defaults(family);
  config.layers = 2;
  config.width = 16;
  config.heads = 4;
  config.key_value_heads = family == "llama" ? 2 : 4;
  config.feed_forward = 24;
  config.vocabulary = 37;
  config.maximum_positions = 8;
  return config;
}

inline EngineOptions tiny_options(const std::string& family) {
  EngineOptions options;
  options.model = tiny_model(family);
  options.threads = 1;
  options.seed = 3;
  options.micro_batch = 2;
  options.sequence_length = 8;
  return options;
}

// Allocated, with its initial weights.
inline std::unique_ptr<Engine> make_engine(const EngineOptions& options) {
  auto engine = std::make_unique<Engine>(options);
  engine->allocate();
  engine->initialise();
  return engine;
}

// Other tokens for every `number`.
inline Batch tiny_batch(const EngineOptions& options, int64_t number) {
  Batch batch;
  batch.samples = options.micro_batch;
  batch.sequence_length = options.sequence_length;
  const int64_t tokens = batch.samples * batch.sequence_length;
  for (int64_t i = 0; i < tokens; ++i) {
    const auto id = [&](int64_t at) {
      return static_cast<int32_t>((number * 11 + at * at + 3 * at) % options.model.vocabulary);
    };
    batch.token_ids.push_back(id(i));
    batch.labels.push_back(id(i + 1));
    batch.positions.push_back(static_cast<int32_t>(i % batch.sequence_length));
    batch.documents.push_back(0);
  }
  batch.indices = whole_indices(batch.samples, batch.sequence_length);
  for (int64_t s = 0; s < batch.samples; ++s) batch.sample_ids.push_back(number * batch.samples + s);
  return batch;
}

// Copies of the bytes of named tensors.
inline std::map<std::string, std::vector<std::byte>> bytes_of(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::vector<std::byte>> bytes;
  for (const NamedTensor& tensor : tensors)
    bytes[tensor.name].assign(tensor.bytes.begin(), tensor.bytes.end());
  return bytes;
}

// Names of tensors whose bytes differ; empty if none.
inline std::string changed(const std::map<std::string, std::vector<std::byte>>& before,
                           const std::map<std::string, std::vector<std::byte>>& after) {
  std::string names;
  for (const auto& [name, bytes] : before) {
    const auto found = after.find(name);
    if (found == after.end() || found->second != bytes) names += name + " ";
  }
  if (before.size() != after.size()) names += "(other tensors)";
  return names;
}

inline NamedTensor named(const std::vector<NamedTensor>& tensors, const std::string& name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  throw std::out_of_range(name);
}

inline std::span<float> floats(const NamedTensor& tensor) {
  return {reinterpret_cast<float*>(tensor.bytes.data()), static_cast<size_t>(tensor.shape.elements())};
}

}  // namespace athanor
