// A model in global shapes, as if for one device: forward graphs of its segments.
//
// Called by compile. It knows nothing of parallelism, precision (all floats are nominally fp32) or gradients.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "athanor/ir/graph.h"
#include "athanor/model/config.h"

namespace athanor {

// The forward graph of each kind of segment. Graph::tables[0] is the segment's own bucket; further tables are
// buckets of other segments whose parameters it uses (a tied head uses the embedding's).
// Inputs by name: batch values (token_ids, labels, positions, documents, indices [B,S], sample_ids [B]),
// residual_in [B,S,D]. Outputs: residual_out [B,S,D]; the head's: loss [1] fp64 (sum over valid tokens), or
// logits [B,S,V] for `predict`.
struct Model {
  ModelConfig config;
  int64_t micro_batch = 0, sequence_length = 0;
  Graph embedding;
  std::vector<Graph> blocks;        // one per distinct kind of block
  std::vector<int32_t> block_kind;  // by layer: index in blocks
  Graph head, predict;
  std::vector<BucketTable> bucket_kinds;  // embedding, "block.{layer}", head
};

// Builds the graphs for micro-batches of `micro_batch` samples of `sequence_length` tokens. `training` false
// leaves dropout, label smoothing and z-loss out.
Model build_model(const ModelConfig& config, int64_t micro_batch, int64_t sequence_length, bool training);

// The bucket tables of a model, "{layer}" filled in: embedding, one per block, head.
std::vector<BucketTable> bucket_tables(const ModelConfig& config);

// Number of parameters; those of position tables and of an untied input embedding apart, since the
// literature's FLOPs count leaves them out.
struct ParameterCount {
  int64_t total = 0;
  int64_t position = 0;
  int64_t untied_input_embedding = 0;
  int64_t counted() const { return total - position - untied_input_embedding; }
};
ParameterCount parameter_count(const ModelConfig& config);

// FLOPs of a training step per token as the literature counts them: 6 N + 12 L H E S (full attention, no
// recomputation); Chowdhery et al. 2022, appendix B.
double literature_flops_per_token(const ModelConfig& config, int64_t sequence_length);

}  // namespace athanor
