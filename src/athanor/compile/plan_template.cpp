#include <algorithm>
#include <optional>
#include <set>

#include "athanor/base/error.h"
#include "athanor/compile/passes.h"
#include "athanor/compile/storage.h"

namespace athanor {

namespace {

class TemplatePlanner {
 public:
  TemplatePlanner(const Graph& graph, const std::vector<std::string>& saved, const Template* imported,
                  const Backend& backend)
      : backend_(backend), imported_(imported), saved_(saved.begin(), saved.end()) {
    result_.name = graph.name;
    result_.graph = graph;
  }

  Template run() {
    bind_values();
    Storage storage(result_.graph, bound_, saved_ids());
    storage.share_in_place();
    order_streams(storage);
    result_.slots.assign(graph().values.size(), Slot{});
    std::vector<Interval> scratch;
    std::vector<const StorageComponent*> scratch_owner;
    for (const StorageComponent& component : storage.components()) {
      if (component.anchor != no_value) {
        place(storage, component, *bound_[static_cast<size_t>(component.anchor)]);
      } else if (component.saved) {
        const int32_t base = base_named("saved", BufferClass::saved);
        place(storage, component,
              Slot{base, result_.bases[static_cast<size_t>(base)].bytes, component.token_stride, 0});
        result_.bases[static_cast<size_t>(base)].bytes += aligned(component.bytes);
      } else if (component.bytes > 0) {
        scratch.push_back({component.bytes, component.first, component.last, -1});
        scratch_owner.push_back(&component);
      }
    }
    add_workspaces(storage, scratch);
    const int64_t scratch_bytes = pack(scratch);
    if (scratch_bytes > 0) {
      const int32_t base = base_named("scratch", BufferClass::scratch);
      result_.bases[static_cast<size_t>(base)].bytes = scratch_bytes;
      for (size_t i = 0; i < scratch_owner.size(); ++i) {
        place(storage, *scratch_owner[i], Slot{base, scratch[i].offset, scratch_owner[i]->token_stride, 0});
      }
      for (size_t i = scratch_owner.size(), w = 0; i < scratch.size(); ++i, ++w) {
        Instruction& instruction = result_.instructions[workspace_owner_[w]];
        instruction.workspace = Slot{base, scratch[i].offset, 0, 0};
      }
    }
    return std::move(result_);
  }

 private:
  const Graph& graph() const { return result_.graph; }

  int32_t base_named(const std::string& name, BufferClass buffer_class) {
    for (size_t i = 0; i < result_.bases.size(); ++i) {
      if (result_.bases[i].name == name) return static_cast<int32_t>(i);
    }
    result_.bases.push_back({name, buffer_class, 0});
    return static_cast<int32_t>(result_.bases.size()) - 1;
  }

  std::vector<bool> saved_ids() const {
    std::vector<bool> ids;
    for (const Value& value : graph().values) ids.push_back(saved_.contains(value.name));
    return ids;
  }

  // Inputs, outputs and values of the forward template have a place given from outside.
  void bind_values() {
    bound_.assign(graph().values.size(), std::nullopt);
    for (const auto* list : {&graph().inputs, &graph().outputs}) {
      for (const ValueId id : *list) {
        const Value& value = graph().value(id);
        if (!saved_.contains(value.name)) bound_[static_cast<size_t>(id)] = slot_from_outside(value);
      }
    }
  }

  Slot slot_from_outside(const Value& value) {
    switch (value.role) {
      case Role::parameter:
        return member_slot(value, value.name, "working.", BufferClass::working_weights);
      case Role::parameter_gradient:
        return member_slot(value, value.name.substr(2), "gradients.", BufferClass::gradients);
      case Role::batch:
        return whole_slot(value, "batch." + value.name, BufferClass::batch);
      case Role::scalar:
        return whole_slot(value, "scalar." + value.name, BufferClass::scalars);
      case Role::master:
        return whole_slot(value, value.name, BufferClass::master_weights);
      case Role::working:
        return whole_slot(value, value.name, BufferClass::working_weights);
      case Role::bucket_gradient:
        return whole_slot(value, value.name, BufferClass::gradients);
      case Role::optimizer_state:
        return whole_slot(
            value, value.name,
            value.name.starts_with("average") ? BufferClass::average_weights : BufferClass::optimizer_state);
      case Role::cache:
        return whole_slot(value, "cache." + value.name, BufferClass::cache);
      default:
        break;
    }
    if (imported_ != nullptr) {
      const ValueId original = imported_->graph.find(value.name);
      if (original != no_value) {
        Slot slot = imported_->slots[static_cast<size_t>(original)];
        const Base& base = imported_->bases[static_cast<size_t>(slot.base)];
        slot.base = base_named(base.name, base.buffer_class);
        result_.bases[static_cast<size_t>(slot.base)].bytes = base.bytes;
        return slot;
      }
    }
    return whole_slot(value, value.name, BufferClass::residual);
  }

  Slot whole_slot(const Value& value, const std::string& base_name, BufferClass buffer_class) {
    const int32_t base = base_named(base_name, buffer_class);
    result_.bases[static_cast<size_t>(base)].bytes =
        value.shape.elements() * static_cast<int64_t>(size_of(value.dtype));
    return {base, 0, value.shape.elements_per_token(), 0};
  }

  // A parameter, or neighbours merged as "a+b", within its bucket.
  Slot member_slot(const Value& value, const std::string& names, const std::string& prefix,
                   BufferClass buffer_class) {
    const std::string first = names.substr(0, names.find('+'));
    const auto element = static_cast<int64_t>(size_of(value.dtype));
    for (const BucketTable& table : graph().tables) {
      for (const BucketMember& member : table.members) {
        if (member.name != first) continue;
        const int32_t base = base_named(prefix + table.name, buffer_class);
        result_.bases[static_cast<size_t>(base)].bytes = table.length() * element;
        return {base, member.offset * element, value.shape.elements_per_token(), 0};
      }
    }
    ATHANOR_ASSERT(false, "no bucket of {} holds {}", result_.name, first);
    return {};
  }

  // Gives every value of a component its slot, from the slot of the component's anchor (or its owner).
  void place(const Storage& storage, const StorageComponent& component, const Slot& at) {
    const ValueId from = component.anchor != no_value ? component.anchor : component.owner;
    for (const ValueId id : component.members) {
      Slot slot = at;
      if (bound_[static_cast<size_t>(id)]) {
        slot = *bound_[static_cast<size_t>(id)];
      } else {
        const auto element = static_cast<int64_t>(size_of(graph().value(id).dtype));
        slot.offset += (storage.position(id) - storage.position(from)) * element;
        if (storage.chunk_rows(id) > 0)
          slot.chunk_bytes = storage.chunk_rows(id) * slot.token_stride * element;
      }
      result_.slots[static_cast<size_t>(id)] = slot;
    }
  }

  static StreamKind stream_of(const Operation& operation) {
    if (operation.kind == OperationKind::load_batch || operation.kind == OperationKind::load_tokens)
      return StreamKind::copy;
    return row_of(operation.kind).is_collective ? StreamKind::communication : StreamKind::compute;
  }

  // The instructions; where the compute stream must wait for collectives; and what collectives use keeps its
  // bytes until then.
  void order_streams(Storage& storage) {
    std::vector<size_t> open;  // collectives, as instructions, that nothing has waited for
    used_until_.assign(graph().operations.size(), -1);
    const auto end_all = [&](int64_t at) {
      for (const size_t one : open) {
        const int32_t operation = result_.instructions[one].operation;
        used_until_[static_cast<size_t>(operation)] = at;
        storage.keep(graph().operations[static_cast<size_t>(operation)], at);
      }
      open.clear();
    };
    int32_t region = -1;
    size_t first_of_region = 0;
    // The next iteration's first operation waits for what the last ones of this one began.
    const auto close_region = [&] {
      const bool left = std::ranges::any_of(open, [&](size_t one) { return one >= first_of_region; });
      if (region >= 0 && left) result_.instructions[first_of_region].joins = true;
    };
    for (size_t i = 0; i < graph().operations.size(); ++i) {
      const Operation& operation = graph().operations[i];
      if (operation.region != region) {
        close_region();
        region = operation.region;
        first_of_region = result_.instructions.size();
      }
      if (row_of(operation.kind).is_view) continue;
      Instruction instruction;
      instruction.operation = static_cast<int32_t>(i);
      instruction.stream = stream_of(operation);
      if (instruction.stream == StreamKind::compute) {
        instruction.joins = std::ranges::any_of(open, [&](size_t one) {
          return storage.conflict(
              graph().operations[static_cast<size_t>(result_.instructions[one].operation)], operation);
        });
        if (instruction.joins) end_all(static_cast<int64_t>(i));
      } else if (instruction.stream == StreamKind::communication) {
        open.push_back(result_.instructions.size());
      }
      result_.instructions.push_back(instruction);
    }
    close_region();
    end_all(static_cast<int64_t>(graph().operations.size()) - 1);
  }

  bool is_strided(const Storage& storage, ValueId id) const {
    const Shape& shape = graph().value(id).shape;
    if (const auto& bound = bound_[static_cast<size_t>(id)])
      return shape.rank() >= 2 && bound->token_stride != shape.elements_per_token();
    return storage.is_strided(id);
  }

  void add_workspaces(const Storage& storage, std::vector<Interval>& scratch) {
    for (size_t i = 0; i < result_.instructions.size(); ++i) {
      Instruction& instruction = result_.instructions[i];
      const auto index = static_cast<size_t>(instruction.operation);
      const Operation& operation = graph().operations[index];
      instruction.workspace_bytes = backend_.workspace_bytes(operation, types_of(graph(), operation.inputs),
                                                             types_of(graph(), operation.outputs));
      // Rows that stand apart are packed before they travel, and after.
      if (instruction.stream == StreamKind::communication) {
        for (const auto* list : {&operation.inputs, &operation.outputs}) {
          for (const ValueId id : *list) {
            if (id != no_value && is_strided(storage, id)) {
              instruction.workspace_bytes += aligned(storage.bytes(id));
            }
          }
        }
      }
      if (instruction.workspace_bytes <= 0) continue;
      const auto first = static_cast<int64_t>(index);
      scratch.push_back({instruction.workspace_bytes, first, std::max(first, used_until_[index]), -1});
      workspace_owner_.push_back(i);
    }
  }

  const Backend& backend_;
  const Template* imported_;
  std::set<std::string> saved_;
  Template result_;
  std::vector<std::optional<Slot>> bound_;
  std::vector<size_t> workspace_owner_;
  std::vector<int64_t> used_until_;  // by operation, of collectives: the operation that waits for them
};

}  // namespace

Template plan_template(const Graph& graph, const std::vector<std::string>& saved, const Template* imported,
                       const Backend& backend) {
  return TemplatePlanner(graph, saved, imported, backend).run();
}

}  // namespace athanor
