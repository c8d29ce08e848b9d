// Whole-model fixtures (tools/reference/README.md) as engine options, batches and named tensors.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "athanor/data/batch.h"
#include "athanor/train/engine.h"

namespace athanor {

class ModelFixture {
 public:
  explicit ModelFixture(const std::string& name);  // "gpt2", "llama", ...

  // Options of the fixture's model with the optimizer's settings; precision fp64, reference kernels.
  EngineOptions options(OptimizerKind optimizer) const;
  double learning_rate(OptimizerKind optimizer) const;
  int64_t steps() const { return static_cast<int64_t>(valid_tokens.size()); }

  Batch batch(int64_t step) const;
  // The same samples cut into micro-batches of `samples` each.
  std::vector<Batch> micro_batches(int64_t step, int64_t samples) const;
  // Writes the initial weights into the engine's master weights.
  void set_weights(Engine& engine) const;

  const std::vector<double>& tensor(const std::string& tensor_name) const { return tensors.at(tensor_name); }
  bool has(const std::string& tensor_name) const { return tensors.contains(tensor_name); }

  ModelConfig config;
  std::vector<double> valid_tokens;

 private:
  std::map<std::string, std::vector<double>> tensors;  // every tensor, widened
  std::map<std::string, double> settings_;             // "adamw.learning_rate", ...
  int64_t samples_ = 0, tokens_ = 0;
};

// Widened copies of an engine's tensors, by logical name.
std::map<std::string, std::vector<double>> widened(const std::vector<NamedTensor>& tensors);

// The largest |a - b| over all tensors, over the largest |a| of all of them (the project's "relative").
double relative_difference(const std::map<std::string, std::vector<double>>& expected,
                           const std::map<std::string, std::vector<double>>& actual);

}  // namespace athanor
