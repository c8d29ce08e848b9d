// Engines as the ranks of a mesh, each in a thread of its own, beside one engine that holds everything: what
// layout invariance is tested with. Used by tests only.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "athanor/train/engine.h"

namespace athanor {

// Whole tensors by name, as numbers.
using Tensors = std::map<std::string, std::vector<double>>;

struct RankRun {
  std::vector<StepResult> steps;
  std::vector<double> validation;  // loss sums after the steps
  Tensors weights;                 // whole
};

// What a run of a layout does: `steps` steps of `micro_batches` micro-batches of `samples` samples each (over
// all ranks), the same tokens in every layout.
struct RunPlan {
  EngineOptions engine;  // micro_batch, sequence_length, threads and communicator are set here
  int64_t samples = 4, sequence_length = 8, micro_batches = 2;
  int steps = 3;
  double learning_rate = 1e-2;
  int threads = 1;        // of each rank
  double loss_scale = 1;  // of the gradient, in all steps
  bool documents = true;  // mask by document
};

// A GPT-2 of two layers and width 8, on reference kernels.
EngineOptions tiny_engine(Precision precision, int64_t maximum_positions);

// Ranks of plan.engine.compile.layout. An error of any rank is rethrown when all have ended. Copies of a
// weight must be equal to the bit: test failures otherwise.
RankRun run_ranks(const RunPlan& plan);

// The batch of a micro-batch that the rank at these coordinates has.
Batch batch_of_rank(const RunPlan& plan, int64_t number, const Coordinates& coordinates);

}  // namespace athanor
