#include "athanor/compile/assemble.h"

#include <functional>
#include <set>

#include "athanor/base/error.h"
#include "athanor/ir/layer_name.h"

namespace athanor {

namespace {

class Assembler {
 public:
  Assembler(const ProgramRequest& request, TemplateSet templates, const PersistentPlan& persistent,
            const std::vector<BucketTable>& tables, bool separate_working)
      : templates_(std::move(templates)), tables_(tables), separate_working_(separate_working) {
    program_.kind = request.kind;
    program_.micro_batches = request.micro_batches;
    program_.micro_batch = request.micro_batch;
    program_.sequence_length = request.sequence_length;
    program_.buffers = persistent.buffers;
    for (size_t i = 0; i < program_.buffers.size(); ++i) {
      known_[program_.buffers[i].name] = static_cast<BufferId>(i);
    }
    persistent_count_ = program_.buffers.size();
  }

  StepProgram run() {
    register_templates();
    load_batches();
    for (int32_t m = 0; m < program_.micro_batches; ++m) {
      forward(m);
      call(head_, -1, m);
      if (program_.kind == ProgramKind::train) backward(m);
    }
    if (program_.kind == ProgramKind::train) update();
    plan_transient();
    return std::move(program_);
  }

 private:
  TemplateId add(Template block) {
    program_.templates.push_back(std::move(block));
    return static_cast<TemplateId>(program_.templates.size()) - 1;
  }

  void register_templates() {
    load_ = add(std::move(templates_.load));
    if (!uses_cache(program_.kind)) count_ = add(std::move(templates_.count_valid));
    embed_ = add(std::move(templates_.embedding_forward));
    for (Template& block : templates_.block_forward) forward_.push_back(add(std::move(block)));
    head_ = add(std::move(templates_.head));
    if (program_.kind != ProgramKind::train) return;
    for (Template& block : templates_.block_backward) backward_.push_back(add(std::move(block)));
    embed_backward_ = add(std::move(templates_.embedding_backward));
    for (Template& block : templates_.squared_norms) norms_.push_back(add(std::move(block)));
    clip_ = add(std::move(templates_.clip));
    for (Template& block : templates_.lamb_norms) lamb_norms_.push_back(add(std::move(block)));
    for (Template& block : templates_.optimizer) optimizer_.push_back(add(std::move(block)));
  }

  int32_t layers() const { return static_cast<int32_t>(templates_.block_kind.size()); }
  size_t kind_of(int32_t layer) const {
    return static_cast<size_t>(templates_.block_kind[static_cast<size_t>(layer)]);
  }

  void load_batches() {
    std::vector<int32_t> loads;
    for (int32_t m = 0; m < program_.micro_batches; ++m) loads.push_back(call(load_, -1, m));
    // The number of valid tokens of the whole step is known before the first backward.
    for (int32_t m = 0; m < program_.micro_batches; ++m) {
      if (count_ >= 0) {
        const int32_t counted = call(count_, -1, m);
        program_.calls[static_cast<size_t>(counted)].waits.push_back(loads[static_cast<size_t>(m)]);
      }
    }
    if (count_ < 0) pending_waits_ = loads;
  }

  void forward(int32_t m) {
    residual_in_ = residual_out_ = fmt::format("residual.{}.0", m);
    call(embed_, -1, m);
    for (int32_t layer = 0; layer < layers(); ++layer) {
      residual_in_ = fmt::format("residual.{}.{}", m, layer);
      residual_out_ = fmt::format("residual.{}.{}", m, layer + 1);
      call(forward_[kind_of(layer)], layer, m);
    }
    residual_in_ = residual_out_;
    gradient_in_ = fmt::format("d.residual.{}.{}", m, layers());
  }

  void backward(int32_t m) {
    for (int32_t layer = layers(); layer-- > 0;) {
      residual_in_ = fmt::format("residual.{}.{}", m, layer);
      gradient_out_ = fmt::format("d.residual.{}.{}", m, layer + 1);
      gradient_in_ = fmt::format("d.residual.{}.{}", m, layer);
      call(backward_[kind_of(layer)], layer, m);
    }
    gradient_out_ = fmt::format("d.residual.{}.0", m);
    call(embed_backward_, -1, m);
  }

  // embedding, block 0 .. L-1, head: kinds 0, 1, 2 of bucket.
  void for_each_bucket(const std::function<void(size_t kind, int32_t layer, size_t table)>& visit) {
    for (size_t t = 0; t < tables_.size(); ++t) {
      const bool block = t > 0 && t + 1 < tables_.size();
      visit(t == 0 ? 0 : block ? 1 : 2, block ? static_cast<int32_t>(t) - 1 : -1, t);
    }
  }

  void update() {
    const auto members_before = [&](size_t table) {
      int64_t count = 0;
      for (size_t t = 0; t < table; ++t) count += static_cast<int64_t>(tables_[t].members.size());
      return count;
    };
    for_each_bucket([&](size_t kind, int32_t layer, size_t table) {
      norms_offset_ = 8 * members_before(table);
      call(norms_[kind], layer, -1);
    });
    norms_offset_ = 0;
    call(clip_, -1, -1);
    if (!lamb_norms_.empty()) {
      for_each_bucket([&](size_t kind, int32_t layer, size_t table) {
        norms_offset_ = 16 * members_before(table);
        call(lamb_norms_[kind], layer, -1);
      });
    }
    for_each_bucket([&](size_t kind, int32_t layer, size_t table) {
      norms_offset_ = 16 * members_before(table);
      call(optimizer_[kind], layer, -1);
    });
  }

  int32_t call(TemplateId id, int32_t layer, int32_t micro_batch) {
    const Template& block = program_.templates[static_cast<size_t>(id)];
    const auto index = static_cast<int32_t>(program_.calls.size());
    Call call;
    call.template_id = id;
    call.layer = layer;
    call.micro_batch = micro_batch;
    for (const Base& base : block.bases) {
      const BufferId buffer = buffer_for(base, fill_layer(base.name, layer), layer, micro_batch, index);
      Buffer& bound = program_.buffers[static_cast<size_t>(buffer)];
      const bool is_norms = base.name == "scalar.norms" || base.name == "scalar.update_norms";
      call.buffers.push_back(buffer);
      call.base_offsets.push_back(is_norms ? norms_offset_ : 0);
      if (static_cast<size_t>(buffer) >= persistent_count_) {
        bound.bytes = std::max(bound.bytes, base.bytes);
        if (bound.first_call < 0) bound.first_call = index;
        bound.last_call = index;
      }
    }
    call.accumulate = accumulation(block, call);
    if (!pending_waits_.empty() && block.instructions.front().stream != StreamKind::copy) {
      call.waits = std::move(pending_waits_);
      pending_waits_.clear();
    }
    program_.calls.push_back(std::move(call));
    return index;
  }

  BufferId buffer_for(const Base& base, std::string name, int32_t layer, int32_t micro_batch, int32_t index) {
    if (name.starts_with("working.") && !separate_working_) name = "master." + name.substr(8);
    if (base.buffer_class == BufferClass::batch)
      name = fmt::format("batch.{}.{}", micro_batch, name.substr(6));
    if (name == "residual_in") name = residual_in_;
    if (name == "residual_out") name = residual_out_;
    if (name == "d.residual_in") name = gradient_in_;
    if (name == "d.residual_out") name = gradient_out_;
    if (name == "saved")
      name = fmt::format("saved.{}.{}", micro_batch, layer < 0 ? "outside" : std::to_string(layer));
    if (name == "scratch") name = fmt::format("scratch.{}", index);
    if (const auto known = known_.find(name); known != known_.end()) return known->second;
    ATHANOR_ASSERT(!is_persistent(base.buffer_class), "no persistent buffer {}", name);
    const auto id = static_cast<BufferId>(program_.buffers.size());
    program_.buffers.push_back({.name = name, .buffer_class = base.buffer_class});
    known_[name] = id;
    return id;
  }

  // The first contribution of a step to a place overwrites it, all others add.
  std::vector<bool> accumulation(const Template& block, const Call& call) {
    std::vector<bool> flags(block.graph.operations.size(), false);
    for (size_t i = 0; i < flags.size(); ++i) {
      const Operation& operation = block.graph.operations[i];
      if (!row_of(operation.kind).accumulates) continue;
      const Slot& slot = block.slots[static_cast<size_t>(operation.outputs[0])];
      const auto base = static_cast<size_t>(slot.base);
      flags[i] = !written_.insert({call.buffers[base], call.base_offsets[base] + slot.offset}).second;
    }
    return flags;
  }

  void plan_transient() {
    std::vector<Interval> intervals;
    for (size_t i = persistent_count_; i < program_.buffers.size(); ++i) {
      Buffer& buffer = program_.buffers[i];
      if (buffer.buffer_class ==
          BufferClass::batch) {  // the copy stream may be early, and the host reads late
        buffer.first_call = 0;
        buffer.last_call = static_cast<int32_t>(program_.calls.size()) - 1;
      }
      intervals.push_back({buffer.bytes, buffer.first_call, buffer.last_call, -1});
    }
    program_.transient_bytes = pack(intervals);
    for (size_t i = 0; i < intervals.size(); ++i) {
      program_.buffers[persistent_count_ + i].offset = intervals[i].offset;
    }
  }

  StepProgram program_;
  TemplateSet templates_;
  const std::vector<BucketTable>& tables_;
  bool separate_working_;
  size_t persistent_count_ = 0;
  std::map<std::string, BufferId> known_;
  std::set<std::pair<BufferId, int64_t>> written_;
  std::vector<int32_t> pending_waits_;
  std::string residual_in_, residual_out_, gradient_in_, gradient_out_;
  int64_t norms_offset_ = 0;
  TemplateId load_ = -1, count_ = -1, embed_ = -1, head_ = -1, embed_backward_ = -1, clip_ = -1;
  std::vector<TemplateId> forward_, backward_, norms_, lamb_norms_, optimizer_;
};

}  // namespace

namespace {

void plan_cache(const ModelConfig& config, const CacheShape& cache, int64_t element,
                const std::function<void(const std::string&, BufferClass, int64_t)>& add) {
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const int64_t bytes = cache.rows * config.key_value_heads_or_default() *
                          cache_slots(cache, config.window_of(layer)) * config.head_dim_or_default() *
                          element;
    for (const char* part : {"key", "value"})
      add(fmt::format("cache.block.{}.attention.{}_cache", layer, part), BufferClass::cache, bytes);
  }
}

}  // namespace

PersistentPlan plan_persistent(const ModelConfig& config, const std::vector<BucketTable>& tables,
                               const CompileOptions& options, const PrecisionPolicy& policy,
                               const PersistentNeeds& needs) {
  PersistentPlan plan;
  const auto add = [&](const std::string& name, BufferClass buffer_class, int64_t bytes) {
    plan.buffers.push_back(
        {.name = name, .buffer_class = buffer_class, .bytes = bytes, .offset = plan.bytes});
    plan.bytes += aligned(bytes);
  };
  const auto wide = static_cast<int64_t>(size_of(policy.wide));
  const auto narrow = static_cast<int64_t>(size_of(policy.compute));
  if (needs.cache.rows > 0) plan_cache(config, needs.cache, narrow, add);
  if (!needs.train) {
    for (const BucketTable& table : tables)
      add("working." + table.name, BufferClass::working_weights, table.length() * narrow);
    for (const char* name : {"valid_tokens", "loss"}) {
      if (needs.loss) add(std::string("scalar.") + name, BufferClass::scalars, 8);
    }
    return plan;
  }
  int64_t members = 0;
  for (const BucketTable& table : tables) {
    const int64_t length = table.length();
    members += static_cast<int64_t>(table.members.size());
    add("master." + table.name, BufferClass::master_weights, length * wide);
    if (policy.compute != policy.wide) {
      add("working." + table.name, BufferClass::working_weights, length * narrow);
    }
    add("gradients." + table.name, BufferClass::gradients, length * wide);
    if (options.optimizer.kind == OptimizerKind::sgd) {
      add("momentum." + table.name, BufferClass::optimizer_state, length * wide);
    } else {
      add("first_moment." + table.name, BufferClass::optimizer_state, length * wide);
      add("second_moment." + table.name, BufferClass::optimizer_state, length * wide);
    }
    if (options.optimizer.average_decay > 0) {
      add("average." + table.name, BufferClass::average_weights, length * wide);
    }
  }
  for (const char* name : {"valid_tokens", "loss", "gradient_norm", "clip_factor", "skip"}) {
    add(std::string("scalar.") + name, BufferClass::scalars, 8);
  }
  add("scalar.norms", BufferClass::scalars, 8 * members);
  if (options.optimizer.kind == OptimizerKind::lamb)
    add("scalar.update_norms", BufferClass::scalars, 16 * members);
  return plan;
}

StepProgram assemble(const ProgramRequest& request, TemplateSet templates, const PersistentPlan& persistent,
                     const std::vector<BucketTable>& tables, bool separate_working) {
  return Assembler(request, std::move(templates), persistent, tables, separate_working).run();
}

}  // namespace athanor
