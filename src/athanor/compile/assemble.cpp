#include "athanor/compile/assemble.h"

#include <algorithm>
#include <functional>
#include <set>

#include "athanor/base/error.h"
#include "athanor/compile/call_order.h"
#include "athanor/ir/layer_name.h"

namespace athanor {

namespace {

class Assembler {
 public:
  Assembler(const ProgramRequest& request, TemplateSet templates, const PersistentPlan& persistent,
            const std::vector<BucketTable>& tables, const Distribution& distribution, std::string weights)
      : templates_(std::move(templates)),
        tables_(tables),
        distribution_(distribution),
        weights_(std::move(weights)),
        order_(program_, distribution.window) {
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
    if (program_.kind == ProgramKind::gather) {
      for_each_bucket(
          [&](size_t kind, int32_t layer, size_t) { order_.add({.id = gather_[kind], .layer = layer}); });
    } else {
      plan_step();
    }
    if (distribution_.gathers) order_.insert_gathers(gather_, tables_);
    for (const PlannedCall& planned : order_.take()) bind(planned);
    plan_transient();
    return std::move(program_);
  }

 private:
  TemplateId add(Template block) {
    program_.templates.push_back(std::move(block));
    return static_cast<TemplateId>(program_.templates.size()) - 1;
  }
  void add_all(std::vector<Template>& blocks, std::vector<TemplateId>& ids) {
    for (Template& block : blocks) ids.push_back(add(std::move(block)));
  }
  void add_some(std::optional<Template>& block, TemplateId& id) {
    if (block) id = add(std::move(*block));
  }

  void register_templates() {
    if (program_.kind != ProgramKind::gather) {
      load_ = add(std::move(templates_.load));
      if (!uses_cache(program_.kind)) count_ = add(std::move(templates_.count_valid));
      add_some(templates_.sum_valid_tokens, sum_valid_tokens_);
      embed_ = add(std::move(templates_.embedding_forward));
      add_all(templates_.block_forward, forward_);
      head_ = add(std::move(templates_.head));
      add_some(templates_.sum_loss, sum_loss_);
    }
    if (program_.kind == ProgramKind::train) {
      add_all(templates_.block_backward, backward_);
      embed_backward_ = add(std::move(templates_.embedding_backward));
      add_all(templates_.scatter, scatter_);
      add_all(templates_.sum_bucket, sum_bucket_);
      add_all(templates_.squared_norms, norms_);
      add_some(templates_.sum_norms, sum_norms_);
      clip_ = add(std::move(templates_.clip));
      add_all(templates_.lamb_norms, lamb_norms_);
      add_some(templates_.sum_update_norms, sum_update_norms_);
      add_all(templates_.optimizer, optimizer_);
    }
    add_all(templates_.gather, gather_);
  }

  int32_t layers() const { return static_cast<int32_t>(templates_.block_kind.size()); }
  size_t kind_of(int32_t layer) const {
    return static_cast<size_t>(templates_.block_kind[static_cast<size_t>(layer)]);
  }

  // ---- the calls of a step, in the order of the compute stream

  void plan_step() {
    load_batches();
    for (int32_t m = 0; m < program_.micro_batches; ++m) {
      forward(m);
      call(head_, -1, m);
      if (program_.kind != ProgramKind::train) continue;
      reduce(tables_.size() - 1, m);
      backward(m);
    }
    sum_scalar(sum_loss_);
    if (program_.kind == ProgramKind::train) update();
  }

  size_t call(TemplateId id, int32_t layer, int32_t micro_batch) {
    place_.id = id;
    place_.layer = layer;
    place_.micro_batch = micro_batch;
    return order_.add(place_);
  }

  void sum_scalar(TemplateId id) {
    if (id >= 0) order_.add_awaited({.id = id});
  }

  void load_batches() {
    std::vector<size_t> loads;
    for (int32_t m = 0; m < program_.micro_batches; ++m) loads.push_back(call(load_, -1, m));
    if (count_ < 0) return order_.wait_next(loads);
    // The number of valid tokens of the whole step is known before the first backward.
    for (int32_t m = 0; m < program_.micro_batches; ++m) {
      order_.wait_next({loads[static_cast<size_t>(m)]});
      call(count_, -1, m);
    }
    sum_scalar(sum_valid_tokens_);
  }

  void forward(int32_t m) {
    place_.residual_in = place_.residual_out = fmt::format("residual.{}.0", m);
    call(embed_, -1, m);
    for (int32_t layer = 0; layer < layers(); ++layer) {
      place_.residual_in = fmt::format("residual.{}.{}", m, layer);
      place_.residual_out = fmt::format("residual.{}.{}", m, layer + 1);
      call(forward_[kind_of(layer)], layer, m);
    }
    place_.residual_in = place_.residual_out;
    place_.gradient_in = fmt::format("d.residual.{}.{}", m, layers());
  }

  void backward(int32_t m) {
    for (int32_t layer = layers(); layer-- > 0;) {
      place_.residual_in = fmt::format("residual.{}.{}", m, layer);
      place_.gradient_out = fmt::format("d.residual.{}.{}", m, layer + 1);
      place_.gradient_in = fmt::format("d.residual.{}.{}", m, layer);
      call(backward_[kind_of(layer)], layer, m);
      reduce(static_cast<size_t>(layer) + 1, m);
    }
    place_.gradient_out = fmt::format("d.residual.{}.0", m);
    call(embed_backward_, -1, m);
    reduce(0, m);
  }

  void for_each_bucket(const std::function<void(size_t kind, int32_t layer, size_t table)>& visit) {
    const size_t count = tables_.size();
    for (size_t t = 0; t < count; ++t) visit(bucket_kind(t, count), bucket_layer(t, count), t);
  }

  // What follows when a micro-batch has given all its contributions to a bucket.
  void reduce(size_t table, int32_t m) {
    const bool last = m + 1 == program_.micro_batches;
    const size_t kind = bucket_kind(table, tables_.size());
    const int32_t layer = bucket_layer(table, tables_.size());
    size_t reduced = no_call;
    if (!scatter_.empty() && (last || distribution_.scatters)) {
      reduced =
          order_.add({.id = scatter_[kind], .layer = layer, .micro_batch = distribution_.scatters ? m : -1});
      // What was reduced gives its memory back soon.
      if (distribution_.scatters) order_.wait_later(reduced);
    }
    if (last && !sum_bucket_.empty() && !templates_of(sum_bucket_[kind]).instructions.empty()) {
      reduced = order_.add({.id = sum_bucket_[kind], .layer = layer});
    }
    reduced_[table] = reduced;
  }
  const Template& templates_of(TemplateId id) const { return program_.templates[static_cast<size_t>(id)]; }

  void update() {
    const auto members_before = [&](size_t table) {
      int64_t count = 0;
      for (size_t t = 0; t < table; ++t) count += static_cast<int64_t>(tables_[t].members.size());
      return count;
    };
    for_each_bucket([&](size_t kind, int32_t layer, size_t table) {
      place_.norms_offset = 8 * members_before(table);
      if (reduced_[table] != no_call) order_.wait_next({reduced_[table]});
      call(norms_[kind], layer, -1);
    });
    place_.norms_offset = 0;
    sum_scalar(sum_norms_);
    call(clip_, -1, -1);
    if (!lamb_norms_.empty()) {
      for_each_bucket([&](size_t kind, int32_t layer, size_t table) {
        place_.norms_offset = 16 * members_before(table);
        call(lamb_norms_[kind], layer, -1);
      });
      place_.norms_offset = 0;
      sum_scalar(sum_update_norms_);
    }
    for_each_bucket([&](size_t kind, int32_t layer, size_t table) {
      place_.norms_offset = 16 * members_before(table);
      call(optimizer_[kind], layer, -1);
      if (distribution_.cut && !distribution_.gathers) order_.add({.id = gather_[kind], .layer = layer});
    });
  }

  // ---- buffers

  void bind(const PlannedCall& planned) {
    const Template& block = templates_of(planned.id);
    const auto index = static_cast<int32_t>(program_.calls.size());
    Call call;
    call.template_id = planned.id;
    call.layer = planned.layer;
    call.micro_batch = planned.micro_batch;
    for (const size_t wait : planned.waits) call.waits.push_back(static_cast<int32_t>(wait));
    for (const Base& base : block.bases) {
      const std::string name = fill_layer(base.name, planned.layer);
      const BufferId buffer = buffer_for(base, buffer_name(name, planned, index));
      const bool is_norms =
          base.name.starts_with("scalar.norms") || base.name.starts_with("scalar.update_norms");
      call.buffers.push_back(buffer);
      call.base_offsets.push_back(is_norms ? planned.norms_offset : 0);
      Buffer& bound = program_.buffers[static_cast<size_t>(buffer)];
      if (static_cast<size_t>(buffer) >= persistent_count_) {
        bound.bytes = std::max(bound.bytes, base.bytes);
        if (bound.first_call < 0) bound.first_call = index;
        bound.last_call =
            std::max(bound.last_call,
                     planned.freed_before > 0 ? static_cast<int32_t>(planned.freed_before) - 1 : index);
      }
    }
    call.accumulate = accumulation(block, call);
    program_.calls.push_back(std::move(call));
  }

  // Which buffer a base of a template is in this call.
  std::string buffer_name(std::string name, const PlannedCall& call, int32_t index) const {
    const auto is = [&](TemplateId id) { return call.id == id; };
    const auto among = [&](const std::vector<TemplateId>& ids) {
      return std::ranges::count(ids, call.id) > 0;
    };
    const auto behind = [&](std::string_view prefix) { return name.substr(prefix.size()); };
    if (name.starts_with("batch.")) return fmt::format("batch.{}.{}", call.micro_batch, behind("batch."));
    if (name == "residual_in") return call.residual_in;
    if (name == "residual_out") return call.residual_out;
    if (name == "d.residual_in") return call.gradient_in;
    if (name == "d.residual_out") return call.gradient_out;
    if (name == "saved") {
      return fmt::format("saved.{}.{}", call.micro_batch,
                         call.layer < 0 ? "outside" : std::to_string(call.layer));
    }
    if (name == "scratch") return fmt::format("scratch.{}", index);
    // Sums over ranks stand between what a rank computes and what it uses.
    const std::string part = name + ".part";
    const bool computes_part =
        (name == "scalar.valid_tokens" && is(count_)) || (name == "scalar.loss" && is(head_)) ||
        (name == "scalar.norms" && among(norms_)) || (name == "scalar.update_norms" && among(lamb_norms_));
    if (computes_part && known_.contains(part)) return part;
    if (name.starts_with("working.")) {
      if (distribution_.cut && among(optimizer_)) return "part." + behind("working.");
      if (const auto gathered = call.gathered.find(name); gathered != call.gathered.end()) {
        return gathered->second;
      }
      return known_.contains(name) ? name : weights_ + behind("working.");
    }
    if (name.starts_with("part.") && !known_.contains(name)) return weights_ + behind("part.");
    if (name.starts_with("gradients.")) {
      if (call.micro_batch < 0 && distribution_.cut && !among(scatter_))
        return "reduced." + behind("gradients.");
      if (distribution_.scatters)
        return fmt::format("gradients.{}.{}", call.micro_batch, behind("gradients."));
    }
    return name;
  }

  BufferId buffer_for(const Base& base, const std::string& name) {
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
  const Distribution& distribution_;
  std::string weights_;
  CallOrder order_;
  PlannedCall place_;  // where the next call of the model stands
  size_t persistent_count_ = 0;
  std::map<std::string, BufferId> known_;
  std::set<std::pair<BufferId, int64_t>> written_;
  std::map<size_t, size_t> reduced_;  // by table: the call after which its sums are made
  TemplateId load_ = -1, count_ = -1, embed_ = -1, head_ = -1, embed_backward_ = -1, clip_ = -1;
  TemplateId sum_valid_tokens_ = -1, sum_loss_ = -1, sum_norms_ = -1, sum_update_norms_ = -1;
  std::vector<TemplateId> forward_, backward_, norms_, lamb_norms_, optimizer_;
  std::vector<TemplateId> scatter_, sum_bucket_, gather_;
};

}  // namespace

StepProgram assemble(const ProgramRequest& request, TemplateSet templates, const PersistentPlan& persistent,
                     const std::vector<BucketTable>& tables, const Distribution& distribution,
                     const std::string& weights) {
  return Assembler(request, std::move(templates), persistent, tables, distribution, weights).run();
}

}  // namespace athanor
