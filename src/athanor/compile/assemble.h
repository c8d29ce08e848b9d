// Strings the calls of compiled templates together into a program and binds them to buffers.
// Internal to `compile`. Thread safety: pure functions.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "athanor/compile/compile.h"
#include "athanor/compile/passes.h"
#include "athanor/model/layout.h"

namespace athanor {

// How a step is spread over ranks, as far as programs differ by it.
struct Distribution {
  const Layout* layout = nullptr;
  bool cut = false;       // ranks of axis `shard` keep a part of master weights and optimizer state each
  bool scatters = false;  // gradients are reduced to parts after each micro-batch, not once a step
  bool gathers = false;   // working weights are gathered where they are used
  int32_t window = 1;     // calls by which gathers run ahead, and reductions may lag behind
  // Axes over which the ranks have seen other tokens; over which norms of members must be added.
  std::vector<Axis> token_axes, norm_axes;
};

// The compiled templates of one program. Optional ones are absent when there is nothing for them to do.
struct TemplateSet {
  Template load, count_valid;
  Template embedding_forward, embedding_backward;
  std::vector<Template> block_forward, block_backward;  // by kind of block
  std::vector<int32_t> block_kind;                      // by layer
  Template head;  // forward and backward in one; or the loss, or what follows the last tokens
  // Updates, by kind of bucket (embedding, block, head).
  std::vector<Template> squared_norms, lamb_norms, optimizer;
  Template clip;
  // Collectives, by kind of bucket.
  std::vector<Template> scatter, sum_bucket, gather;
  std::optional<Template> sum_valid_tokens, sum_loss, sum_norms, sum_update_norms;
};

// Buffers that all programs share: weights, optimizer state, gradients, scalars.
struct PersistentPlan {
  std::vector<Buffer> buffers;
  int64_t bytes = 0;
};
// What the programs of a set keep besides weights.
struct PersistentNeeds {
  bool train = false, loss = false;
  CacheShape cache = {};  // of all ranks
};
Distribution distribution_of(const Layout& layout, const CompileOptions& options,
                             const PersistentNeeds& needs);
PersistentPlan plan_persistent(const ModelConfig& config, const std::vector<BucketTable>& tables,
                               const CompileOptions& options, const PrecisionPolicy& policy,
                               const Distribution& distribution, const PersistentNeeds& needs);

// Graphs of the operations outside of the model.
Graph load_graph(int64_t micro_batch, int64_t sequence_length);
Graph load_tokens_graph(int64_t samples, int64_t tokens);
Graph count_valid_graph(int64_t micro_batch, int64_t sequence_length);
Graph squared_norms_graph(const BucketTable& table, const PrecisionPolicy& policy);
Graph clip_graph(int64_t members, const OptimizerOptions& options);
Graph lamb_norms_graph(const BucketTable& table, const OptimizerOptions& options,
                       const PrecisionPolicy& policy);
Graph optimizer_graph(const BucketTable& table, const OptimizerOptions& options,
                      const PrecisionPolicy& policy);

// `weights`: what "working.NAME" is where no such buffer is kept: "master." when both have one type.
StepProgram assemble(const ProgramRequest& request, TemplateSet templates, const PersistentPlan& persistent,
                     const std::vector<BucketTable>& tables, const Distribution& distribution,
                     const std::string& weights);

}  // namespace athanor
