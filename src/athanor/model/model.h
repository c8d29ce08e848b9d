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
// residual_in [B,S,D]; for generation token_ids, positions [B,S], lengths, cache_rows [B]. Outputs:
// residual_out [B,S,D]; the head's: loss [1] fp64 (sum over valid tokens), or for generation logits [B,1,V]
// of what follows each sample's last token. Blocks for generation also update "key_cache" and "value_cache"
// of their layer, [rows, K, slots, E].
struct Model {
  ModelConfig config;
  Graph embedding;
  std::vector<Graph> blocks;        // one per distinct kind of block
  std::vector<int32_t> block_kind;  // by layer: index in blocks
  Graph head;
  std::vector<BucketTable> bucket_kinds;  // embedding, "block.{layer}", head
};

enum class ModelPurpose : uint8_t {
  train,
  score,     // the loss alone: no dropout, label smoothing or z-loss
  generate,  // keys and values of earlier tokens come from a cache
};

// The key-value cache: how many sequences it holds, how long they may be, and how many tokens are at most
// written to it at a time.
struct CacheShape {
  int64_t rows = 0, capacity = 0, longest_part = 1;
  friend bool operator==(const CacheShape&, const CacheShape&) = default;
};

// Slots of a row in a layer with this window. A token has slot position % slots; with a window that is a
// ring which still holds all that the first of longest_part new tokens sees.
int64_t cache_slots(const CacheShape& cache, int64_t window);

// What the graphs are for: micro-batches of `samples` samples of `tokens` tokens.
struct ModelShape {
  ModelPurpose purpose = ModelPurpose::train;
  int64_t samples = 1, tokens = 1;
  CacheShape cache = {};  // generate
  int64_t filled_up =
      0;  // this many tokens at most, behind the others and with positions from 0 of their own
};

Model build_model(const ModelConfig& config, const ModelShape& shape);

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
