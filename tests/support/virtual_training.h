// Training steps of a whole model on virtual ranks: every graph that a step has, with collectives between
// ranks as plain loops. What layout invariance means, without threads or transports. Used by tests only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "athanor/compile/options.h"
#include "support/sharded_segments.h"

namespace athanor {

struct TrainingOptions {
  LayoutOptions layout;
  bool cut_buckets = false;  // gradients, weights and optimizer state cut over axis `shard`
  OptimizerOptions optimizer;
};

struct StepOutcome {
  double loss = 0, gradient_norm = 0, valid_tokens = 0;
};

class VirtualTraining {
 public:
  VirtualTraining(const ModelConfig& config, const SegmentInputs& inputs, const TrainingOptions& options);

  StepOutcome step();
  // Every parameter, whole, by name. Padding must be zero and copies equal to the bit: test failures
  // otherwise.
  Wholes weights() const;

 private:
  using Local = std::vector<std::vector<double>>;  // by rank
  struct Bucket {
    BucketTable whole, local;
    int64_t layer = -1;
    Local weights, gradients, reduced;
    std::map<std::string, Local> state;  // "master", "first_moment", ...
    Local norms, update_norms;
  };

  void add_buckets();
  void run_segments();
  VirtualRanks run(const Graph& graph, int64_t layer, const std::vector<const VirtualRanks*>& given,
                   const std::map<std::string, std::string>& renamed);
  void add_gradients(const VirtualRanks& ranks, int64_t layer);
  void reduce();
  double clip();
  void update();
  Local summed(const std::string& name, const Local& parts, const std::vector<Axis>& axes) const;
  Local concatenated(Local Bucket::* member) const;
  Graph on_part(Graph graph) const;
  Bucket& bucket_of(const std::string& parameter, int64_t layer);
  std::vector<Axis> norm_axes() const;

  ModelConfig config_;
  SegmentInputs inputs_;
  TrainingOptions options_;
  Layout layout_;
  int ranks_ = 0;
  std::map<std::string, Placements> gradients_;
  std::vector<ShardedSegment> segments_;  // embedding, block, head
  std::vector<Bucket> buckets_;
  Local valid_tokens_, loss_, clip_factor_, skip_;
  StepInputs step_;
};

}  // namespace athanor
