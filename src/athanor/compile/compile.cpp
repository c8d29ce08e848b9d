#include "athanor/compile/compile.h"

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/compile/assemble.h"
#include "athanor/compile/bucket_graphs.h"
#include "athanor/compile/shard.h"
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
  Compiler(const ModelConfig& config, std::span<const ProgramRequest> requests, const CompileOptions& options,
           const Backend& backend)
      : config_(config),
        requests_(requests),
        options_(options),
        backend_(backend),
        layout_(layout_of(config, layout_options(requests, options.layout))) {}

  ProgramSet run() {
    ProgramSet set;
    policy_ = policy_of(options_, backend_, set.notes);
    PersistentNeeds needs = needs_of(requests_);
    needs.cache.rows *= layout_.mesh().data_ranks();
    distribution_ = distribution_of(layout_, options_, needs);
    set.mesh = layout_.mesh();
    set.cut_buckets = distribution_.cut;
    set.gradient_wire = options_.gradient_wire;
    set.whole_tables = bucket_tables(config_);
    for (BucketTable& table : set.whole_tables) {
      apply_roles(table, options_.optimizer);
      set.tables.push_back(local_table(table, layout_));
    }
    const PersistentPlan persistent =
        plan_persistent(config_, set.tables, options_, policy_, distribution_, needs);
    set.persistent_bytes = persistent.bytes;
    const auto add = [&](const ProgramRequest& request, TemplateSet templates) {
      // Without a copy of their own in the compute type, weights are used where they are kept.
      set.programs.push_back(assemble(request, std::move(templates), persistent, set.tables, distribution_,
                                      needs.train ? "master." : "working."));
      verify(set.programs.back());
    };
    for (const ProgramRequest& request : requests_) add(request, templates_of(request, set.tables));
    if (distribution_.cut && !distribution_.gathers) add({.kind = ProgramKind::gather}, gathers());
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

  // Tokens of which there are few at a time are not cut.
  static LayoutOptions layout_options(std::span<const ProgramRequest> requests, LayoutOptions layout) {
    const auto cached = std::ranges::count_if(
        requests, [](const ProgramRequest& request) { return uses_cache(request.kind); });
    if (cached == 0) return layout;
    if (layout.mesh.size(Axis::context) > 1) {
      throw_user_error(fmt::format("mesh.context is {}: programs that continue sequences do not cut them",
                                   layout.mesh.size(Axis::context)),
                       "give those ranks to mesh.tensor, or to mesh.shard for sequences of their own");
    }
    ATHANOR_ASSERT(cached == std::ssize(requests) || !layout.sequence_parallel,
                   "programs that cut sequences beside those that do not");
    layout.sequence_parallel = false;
    return layout;
  }

  static Segment checked(Segment segment) {
    verify(segment.graph);
    return segment;
  }

  Template plan_update(const Graph& graph, const std::vector<std::string>& saved = {},
                       const Template* imported = nullptr) {
    verify(graph);
    return plan_template(graph, saved, imported, backend_);
  }

  // Of what works with buckets in the middle of a step.
  Template plan(const Graph& graph, const std::vector<std::string>& saved = {},
                const Template* imported = nullptr) {
    Template block = plan_update(graph, saved, imported);
    for (Base& base : block.bases) {
      if (distribution_.scatters && base.name.starts_with("gradients."))
        base.buffer_class = BufferClass::unreduced_gradients;
      if (distribution_.gathers && base.name.starts_with("working."))
        base.buffer_class = BufferClass::gathered_weights;
    }
    return block;
  }

  TemplateSet templates_of(const ProgramRequest& request, const std::vector<BucketTable>& tables) {
    const bool train = request.kind == ProgramKind::train, cached = uses_cache(request.kind);
    const int64_t samples = request.micro_batch, sequence = request.sequence_length;
    const ModelPurpose purpose = train    ? ModelPurpose::train
                                 : cached ? ModelPurpose::generate
                                          : ModelPurpose::score;
    CacheShape cache = request.cache;
    cache.rows *= layout_.mesh().data_ranks();
    Model model = build_model(config_, {purpose, samples * layout_.mesh().data_ranks(), sequence, cache,
                                        cached ? 0 : sequence_granule(layout_.options) - 1});
    const int64_t tokens = sequence / layout_.mesh().size(Axis::context);
    TemplateSet result;
    result.load = plan(cached ? load_tokens_graph(samples, tokens) : load_graph(samples, tokens));
    if (!cached) {
      result.count_valid = plan(count_valid_graph(samples, tokens));
      result.sum_valid_tokens = sum_of("valid_tokens", 1, distribution_.token_axes);
      result.sum_loss = sum_of("loss", 1, distribution_.token_axes);
    }
    result.block_kind = model.block_kind;
    gradients_.clear();
    body(std::move(model.embedding), train, result.embedding_forward, result.embedding_backward);
    for (Graph& block : model.blocks) {
      result.block_forward.emplace_back();
      result.block_backward.emplace_back();
      body(std::move(block), train, result.block_forward.back(), result.block_backward.back());
    }
    result.head = head(std::move(model.head), train);
    if (train) updates(result, model, tables);
    if (distribution_.gathers || (train && distribution_.cut)) add_gathers(result, model);
    return result;
  }

  TemplateSet gathers() {
    TemplateSet result;
    const Model model = build_model(config_, {});
    result.block_kind = model.block_kind;
    add_gathers(result, model);
    return result;
  }

  void add_gathers(TemplateSet& result, const Model& model) {
    for (const BucketTable& table : model.bucket_kinds) {
      result.gather.push_back(
          plan(gather_bucket_graph(local_table(table, layout_), layout_, policy_.compute)));
    }
  }

  // Nothing when no axis has more than one rank.
  std::optional<Template> sum_of(const std::string& name, int64_t length, const std::vector<Axis>& axes) {
    if (axes.empty()) return std::nullopt;
    return plan(sum_graph(name, length, axes, layout_));
  }

  Segment start(Graph graph, bool train) {
    for (BucketTable& table : graph.tables) apply_roles(table, options_.optimizer);
    Segment segment{std::move(graph), 0};
    segment.forward_count = static_cast<int64_t>(segment.graph.operations.size());
    if (train) segment = checked(differentiate(std::move(segment)));
    segment = checked(shard(std::move(segment), layout_));
    for (const auto& [name, placements] : gradient_placements(segment.graph)) {
      const auto [known, added] = gradients_.emplace(name, placements);
      ATHANOR_ASSERT(known->second == placements, "contributions to {} are not alike", name);
    }
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
    const bool several = !distribution_.token_axes.empty() || !distribution_.norm_axes.empty();
    const auto on_part = [&](Graph graph) {
      return distribution_.cut ? on_bucket_part(std::move(graph), layout_) : graph;
    };
    for (const BucketTable& whole : model.bucket_kinds) {
      BucketTable table = local_table(whole, layout_);
      apply_roles(table, options_.optimizer);
      if (distribution_.cut)
        result.scatter.push_back(plan(scatter_bucket_graph(table, gradients_, layout_, policy_.wide)));
      if (several) {
        result.sum_bucket.push_back(
            plan(sum_bucket_graph(table, gradients_, layout_, distribution_.cut, policy_.wide)));
      }
      result.squared_norms.push_back(plan_update(on_part(squared_norms_graph(table, policy_))));
      if (options_.optimizer.kind == OptimizerKind::lamb) {
        result.lamb_norms.push_back(
            plan_update(on_part(lamb_norms_graph(table, options_.optimizer, policy_))));
      }
      result.optimizer.push_back(plan_update(on_part(optimizer_graph(table, options_.optimizer, policy_))));
    }
    result.sum_norms = sum_of("norms", members, distribution_.norm_axes);
    if (options_.optimizer.kind == OptimizerKind::lamb)
      result.sum_update_norms = sum_of("update_norms", 2 * members, distribution_.norm_axes);
    result.clip = plan(clip_graph(members, options_.optimizer));
  }

  const ModelConfig& config_;
  const std::span<const ProgramRequest> requests_;
  const CompileOptions& options_;
  const Backend& backend_;
  const Layout layout_;
  Distribution distribution_;
  std::map<std::string, Placements> gradients_;  // by parameter: what its gradient is when backward ends
  PrecisionPolicy policy_;
};

}  // namespace

Distribution distribution_of(const Layout& layout, const CompileOptions& options,
                             const PersistentNeeds& needs) {
  Distribution distribution;
  distribution.layout = &layout;
  const auto several = [&](Axis axis) { return layout.mesh().size(axis) > 1; };
  // Without training there are weights alone. Ranks that continue sequences of their own gather nothing: no
  // other rank is at the same place.
  const int32_t least_stage = needs.train ? 1 : 3;
  distribution.cut =
      options.zero_stage >= least_stage && several(Axis::shard) && (needs.train || needs.cache.rows == 0);
  distribution.scatters = distribution.cut && needs.train && options.zero_stage >= 2;
  distribution.gathers = distribution.cut && options.zero_stage >= 3;
  distribution.window = options.gather_window;
  for (const Axis axis : {Axis::replica, Axis::shard, Axis::context}) {
    if (several(axis)) distribution.token_axes.push_back(axis);
  }
  if (distribution.cut) distribution.norm_axes.push_back(Axis::shard);
  if (several(Axis::tensor)) distribution.norm_axes.push_back(Axis::tensor);
  return distribution;
}

ProgramSet compile(const ModelConfig& config, std::span<const ProgramRequest> requests,
                   const CompileOptions& options, const Backend& backend) {
  return Compiler(config, requests, options, backend).run();
}

int64_t planned_bytes(const ProgramSet& set) {
  int64_t transient = 0;
  for (const StepProgram& program : set.programs) transient = std::max(transient, program.transient_bytes);
  return set.persistent_bytes + transient;
}

}  // namespace athanor
