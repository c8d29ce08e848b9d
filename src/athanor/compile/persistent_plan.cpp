// What every program of a set finds in memory when a step begins and leaves there when it ends.

#include <fmt/core.h>

#include "athanor/compile/assemble.h"
#include "athanor/ir/part.h"

namespace athanor {

namespace {

class Planner {
 public:
  void add(const std::string& name, BufferClass buffer_class, int64_t bytes) {
    plan_.buffers.push_back(
        {.name = name, .buffer_class = buffer_class, .bytes = bytes, .offset = plan_.bytes});
    plan_.bytes += aligned(bytes);
  }

  void add_cache(const ModelConfig& config, const CacheShape& cache, const Layout& layout, int64_t element) {
    for (int64_t layer = 0; layer < config.layers; ++layer) {
      const Shape whole{cache.rows, config.key_value_heads_or_default(),
                        cache_slots(cache, config.window_of(layer)), config.head_dim_or_default()};
      const int64_t bytes = storage_shape(whole, layout.cache, layout.mesh()).elements() * element;
      for (const char* part : {"key", "value"})
        add(fmt::format("cache.block.{}.attention.{}_cache", layer, part), BufferClass::cache, bytes);
    }
  }

  // A scalar, or a vector, that is summed over ranks before it is used.
  void add_scalar(const std::string& name, int64_t length, bool is_summed) {
    add("scalar." + name, BufferClass::scalars, 8 * length);
    if (is_summed) add("scalar." + name + ".part", BufferClass::scalars, 8 * length);
  }

  PersistentPlan take() { return std::move(plan_); }

 private:
  PersistentPlan plan_;
};

}  // namespace

PersistentPlan plan_persistent(const ModelConfig& config, const std::vector<BucketTable>& tables,
                               const CompileOptions& options, const PrecisionPolicy& policy,
                               const Distribution& distribution, const PersistentNeeds& needs) {
  Planner plan;
  const auto wide = static_cast<int64_t>(size_of(policy.wide));
  const auto narrow = static_cast<int64_t>(size_of(policy.compute));
  const bool mixed = policy.compute != policy.wide, cut = distribution.cut;
  const bool token_sums = !distribution.token_axes.empty(), norm_sums = !distribution.norm_axes.empty();
  if (needs.cache.rows > 0) plan.add_cache(config, needs.cache, *distribution.layout, narrow);
  if (!needs.train) {
    for (const BucketTable& table : tables) {
      const int64_t kept =
          cut ? bucket_part_length(table.length(), distribution.layout->mesh()) : table.length();
      plan.add((cut ? "part." : "working.") + table.name, BufferClass::working_weights, kept * narrow);
    }
    for (const char* name : {"valid_tokens", "loss"}) {
      if (needs.loss) plan.add_scalar(name, 1, token_sums);
    }
    return plan.take();
  }
  int64_t members = 0;
  for (const BucketTable& table : tables) {
    const int64_t whole = table.length();
    const int64_t kept = cut ? bucket_part_length(whole, distribution.layout->mesh()) : whole;
    members += static_cast<int64_t>(table.members.size());
    plan.add("master." + table.name, BufferClass::master_weights, kept * wide);
    if (cut && mixed) plan.add("part." + table.name, BufferClass::working_weights, kept * narrow);
    if (cut ? !distribution.gathers : mixed) {
      plan.add("working." + table.name, BufferClass::working_weights, whole * narrow);
    }
    if (!distribution.scatters) plan.add("gradients." + table.name, BufferClass::gradients, whole * wide);
    if (cut) plan.add("reduced." + table.name, BufferClass::gradients, kept * wide);
    if (options.optimizer.kind == OptimizerKind::sgd) {
      plan.add("momentum." + table.name, BufferClass::optimizer_state, kept * wide);
    } else {
      plan.add("first_moment." + table.name, BufferClass::optimizer_state, kept * wide);
      plan.add("second_moment." + table.name, BufferClass::optimizer_state, kept * wide);
    }
    if (options.optimizer.average_decay > 0) {
      plan.add("average." + table.name, BufferClass::average_weights, kept * wide);
    }
  }
  plan.add_scalar("valid_tokens", 1, token_sums);
  plan.add_scalar("loss", 1, token_sums);
  for (const char* name : {"gradient_norm", "clip_factor", "skip"}) plan.add_scalar(name, 1, false);
  plan.add_scalar("norms", members, norm_sums);
  if (options.optimizer.kind == OptimizerKind::lamb) plan.add_scalar("update_norms", 2 * members, norm_sums);
  return plan.take();
}

}  // namespace athanor
