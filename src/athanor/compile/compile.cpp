#include "athanor/compile/compile.h"

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/compile/assemble.h"
#include "athanor/model/model.h"

namespace athanor {

namespace {

// Weight decay and learning-rate factor of each parameter, from its declared role.
void apply_roles(BucketTable& table, const OptimizerOptions& options) {
  for (BucketMember& member : table.members) {
    switch (member.role) {
      case ParameterRole::matrix:
        member.weight_decay = options.weight_decay;
        member.learning_rate_factor = options.matrix_rate;
        break;
      case ParameterRole::embedding:
        member.weight_decay = options.decay_embeddings ? options.weight_decay : 0;
        member.learning_rate_factor = options.embedding_rate;
        break;
      case ParameterRole::norm:
        member.weight_decay = options.decay_norms ? options.weight_decay : 0;
        member.learning_rate_factor = options.norm_rate;
        break;
      case ParameterRole::bias:
        member.weight_decay = options.decay_biases ? options.weight_decay : 0;
        member.learning_rate_factor = options.bias_rate;
        break;
    }
  }
}

class Compiler {
 public:
  Compiler(const ModelConfig& config, const CompileOptions& options, const Backend& backend)
      : config_(config), options_(options), backend_(backend) {}

  ProgramSet run(std::span<const ProgramRequest> requests) {
    ProgramSet set;
    policy_ = policy_of(options_, backend_, set.notes);
    set.tables = bucket_tables(config_);
    for (BucketTable& table : set.tables) apply_roles(table, options_.optimizer);
    const PersistentNeeds needs = needs_of(requests);
    const PersistentPlan persistent = plan_persistent(config_, set.tables, options_, policy_, needs);
    set.persistent_bytes = persistent.bytes;
    const bool separate_working = !needs.train || policy_.compute != policy_.wide;
    for (const ProgramRequest& request : requests) {
      TemplateSet templates = templates_of(request, set.tables);
      set.programs.push_back(
          assemble(request, std::move(templates), persistent, set.tables, separate_working));
      verify(set.programs.back());
    }
    return set;
  }

 private:
  static PersistentNeeds needs_of(std::span<const ProgramRequest> requests) {
    PersistentNeeds needs;
    for (const ProgramRequest& request : requests) {
      needs.train |= request.kind == ProgramKind::train;
      needs.loss |= !uses_cache(request.kind);
      if (!uses_cache(request.kind)) continue;
      ATHANOR_ASSERT(needs.cache == CacheShape{} || needs.cache == request.cache, "caches of two shapes");
      needs.cache = request.cache;
    }
    return needs;
  }

  static Segment checked(Segment segment) {
    verify(segment.graph);
    return segment;
  }

  Template plan(const Graph& graph, const std::vector<std::string>& saved = {},
                const Template* imported = nullptr) {
    verify(graph);
    return plan_template(graph, saved, imported, backend_);
  }

  TemplateSet templates_of(const ProgramRequest& request, const std::vector<BucketTable>& tables) {
    const bool train = request.kind == ProgramKind::train, cached = uses_cache(request.kind);
    const int64_t samples = request.micro_batch, tokens = request.sequence_length;
    const ModelPurpose purpose = train    ? ModelPurpose::train
                                 : cached ? ModelPurpose::generate
                                          : ModelPurpose::score;
    Model model = build_model(config_, {purpose, samples, tokens, request.cache});
    TemplateSet result;
    result.load = plan(cached ? load_tokens_graph(samples, tokens) : load_graph(samples, tokens));
    if (!cached) result.count_valid = plan(count_valid_graph(samples, tokens));
    result.block_kind = model.block_kind;
    body(std::move(model.embedding), train, result.embedding_forward, result.embedding_backward);
    for (Graph& block : model.blocks) {
      result.block_forward.emplace_back();
      result.block_backward.emplace_back();
      body(std::move(block), train, result.block_forward.back(), result.block_backward.back());
    }
    result.head = head(std::move(model.head), train);
    if (train) updates(result, model, tables);
    return result;
  }

  Segment start(Graph graph, bool train) {
    for (BucketTable& table : graph.tables) apply_roles(table, options_.optimizer);
    Segment segment{std::move(graph), 0};
    segment.forward_count = static_cast<int64_t>(segment.graph.operations.size());
    if (train) segment = checked(differentiate(std::move(segment)));
    return checked(merge_products(std::move(segment)));
  }

  void body(Graph graph, bool train, Template& forward, Template& backward) {
    Segment segment = start(std::move(graph), train);
    segment = checked(fuse(std::move(segment)));
    segment = checked(assign_precision(std::move(segment), policy_));
    if (!train) {
      segment.graph.name += ".forward";
      forward = plan(segment.graph);
      return;
    }
    segment = checked(recompute(std::move(segment), options_.recompute));
    const SplitSegment parts = split(segment);
    forward = plan(parts.forward, parts.saved);
    backward = plan(parts.backward, {}, &forward);
  }

  Template head(Graph graph, bool train) {
    Segment segment = start(std::move(graph), train);
    segment = checked(fuse(std::move(segment)));
    segment = checked(assign_precision(std::move(segment), policy_));
    segment = checked(chunk_head(std::move(segment), options_.head_chunk_tokens));
    return plan(segment.graph);
  }

  void updates(TemplateSet& result, const Model& model, const std::vector<BucketTable>& tables) {
    int64_t members = 0;
    for (const BucketTable& table : tables) members += static_cast<int64_t>(table.members.size());
    for (BucketTable table : model.bucket_kinds) {
      apply_roles(table, options_.optimizer);
      result.squared_norms.push_back(plan(squared_norms_graph(table, policy_)));
      if (options_.optimizer.kind == OptimizerKind::lamb) {
        result.lamb_norms.push_back(plan(lamb_norms_graph(table, options_.optimizer, policy_)));
      }
      result.optimizer.push_back(plan(optimizer_graph(table, options_.optimizer, policy_)));
    }
    result.clip = plan(clip_graph(members, options_.optimizer));
  }

  const ModelConfig& config_;
  const CompileOptions& options_;
  const Backend& backend_;
  PrecisionPolicy policy_;
};

}  // namespace

ProgramSet compile(const ModelConfig& config, std::span<const ProgramRequest> requests,
                   const CompileOptions& options, const Backend& backend) {
  return Compiler(config, options, backend).run(requests);
}

int64_t planned_bytes(const ProgramSet& set) {
  int64_t transient = 0;
  for (const StepProgram& program : set.programs) transient = std::max(transient, program.transient_bytes);
  return set.persistent_bytes + transient;
}

}  // namespace athanor
