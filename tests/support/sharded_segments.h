// Segments of a model compiled for a mesh and run on virtual ranks, to compare layouts with one device.
// Used by tests only.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "athanor/compile/shard.h"
#include "athanor/model/model.h"
#include "support/virtual_ranks.h"

namespace athanor {

using Wholes = std::map<std::string, Whole>;

// How a segment is compiled.
struct SegmentOptions {
  LayoutOptions layout;
  Recompute recompute = Recompute::none;
  int64_t head_chunk_tokens = 0;
  bool train = true;  // forward and backward; else forward alone
};

// A segment on all ranks of a mesh: forward and backward, all passes, fp64.
class ShardedSegment {
 public:
  ShardedSegment(const ModelConfig& config, Graph graph, const SegmentOptions& options);

  // Runs forward and backward. `inputs`: every input of the segment by name, whole. Returns every output,
  // whole; gradients under "d.NAME".
  Wholes run(const Wholes& inputs, const StepInputs& step);

  const Graph& forward() const { return forward_; }
  const Graph& backward() const { return backward_; }  // empty for a head, whose backward stands in forward
  int64_t executions(OperationKind kind) const;
  const std::map<std::string, Placements>& gradients() const { return gradients_; }
  const Layout& layout() const { return layout_; }

 private:
  void set_inputs(VirtualRanks& ranks, const Wholes& inputs, const VirtualRanks* saved) const;
  void collect(const VirtualRanks& ranks, Wholes& outputs) const;

  Layout layout_;
  std::map<std::string, Shape> shapes_;  // of what the segment gives, global
  std::map<std::string, Placements> gradients_;
  Graph forward_, backward_;
  std::map<OperationKind, int64_t> executions_;
};

// The batch and everything else that segments of a model are given, made up from a seed.
struct SegmentInputs {
  SegmentInputs(const ModelConfig& config, int64_t samples, int64_t sequence_length);
  // With the sequence filled up to a multiple of `granule`, as the loader does it; what the filling holds
  // must not matter, and is noise where it may be.
  SegmentInputs padded(int64_t granule) const;

  int64_t samples, sequence_length;
  Wholes values;  // parameters, batch, residual_in, d.residual_out, valid_tokens
};

// "a+b+c" -> a, b, c: the members that a merged value covers.
std::vector<std::string> split_names(std::string names);

// |a - b| over the largest magnitude of its kind: of gradients of all parameters together, of each other
// value. `sequence_length`: of values [B,S,..] only the tokens before it count.
double difference(const Wholes& expected, const Wholes& actual, std::string* worst = nullptr);

}  // namespace athanor
