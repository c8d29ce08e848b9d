// Strings the calls of compiled templates together into a program and binds them to buffers.
// Internal to `compile`.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "athanor/compile/compile.h"
#include "athanor/compile/passes.h"

namespace athanor {

// The compiled templates of one program.
struct TemplateSet {
  Template load, count_valid;
  Template embedding_forward, embedding_backward;
  std::vector<Template> block_forward, block_backward;  // by kind of block
  std::vector<int32_t> block_kind;                      // by layer
  Template head;  // forward and backward in one; or the loss, or what follows the last tokens
  // Updates, by kind of bucket (embedding, block, head).
  std::vector<Template> squared_norms, lamb_norms, optimizer;
  Template clip;
};

// Buffers that all programs share: weights, optimizer state, gradients, scalars.
struct PersistentPlan {
  std::vector<Buffer> buffers;
  int64_t bytes = 0;
};
// What the programs of a set keep besides weights.
struct PersistentNeeds {
  bool train = false, loss = false;
  CacheShape cache = {};
};
PersistentPlan plan_persistent(const ModelConfig& config, const std::vector<BucketTable>& tables,
                               const CompileOptions& options, const PrecisionPolicy& policy,
                               const PersistentNeeds& needs);

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

StepProgram assemble(const ProgramRequest& request, TemplateSet templates, const PersistentPlan& persistent,
                     const std::vector<BucketTable>& tables, bool separate_working);

}  // namespace athanor
