#include "athanor/execute/resolved_program.h"

#include <algorithm>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/ir/part.h"

namespace athanor {

namespace {

// By value: what is made inside a region, by its operations or as chunks of whole tensors, is chunk-shaped.
std::vector<bool> chunked_values(const Graph& graph) {
  std::vector<bool> chunked(graph.values.size(), false);
  for (const Operation& operation : graph.operations) {
    if (operation.region < 0 || operation.kind == OperationKind::collect) continue;
    for (const ValueId id : operation.outputs) {
      if (id == no_value) continue;
      const Value& value = graph.value(id);
      chunked[static_cast<size_t>(id)] =
          value.shape.rank() >= 2 && value.role != Role::parameter && value.role != Role::parameter_gradient;
    }
  }
  return chunked;
}

}  // namespace

Places::Places(const StepProgram& program, const Arenas& arenas) : program_(program), arenas_(arenas) {
  for (const Template& block : program.templates) chunked_.push_back(chunked_values(block.graph));
}

std::byte* Places::address(const Call& call, const Slot& slot, int64_t iteration) const {
  const auto base = static_cast<size_t>(slot.base);
  const Buffer& buffer = program_.buffers[static_cast<size_t>(call.buffers[base])];
  std::byte* arena = is_persistent(buffer.buffer_class) ? arenas_.persistent : arenas_.transient;
  return arena + buffer.offset + call.base_offsets[base] + slot.offset + iteration * slot.chunk_bytes;
}

TensorView Places::view(const Call& call, ValueId id, int32_t region, int64_t iteration) const {
  if (id == no_value) return {};
  const Template& block = program_.templates[static_cast<size_t>(call.template_id)];
  const Value& value = block.graph.value(id);
  const Slot& slot = block.slots[static_cast<size_t>(id)];
  if (slot.base < 0) return {};
  TensorView result{address(call, slot, iteration), value.dtype, value.shape, slot.token_stride};
  if (region >= 0 && chunked_[static_cast<size_t>(call.template_id)]
                             [static_cast<size_t>(id)]) {  // the last chunk may be short
    const Region& loop = block.graph.regions[static_cast<size_t>(region)];
    result.shape.set(1, std::min(loop.chunk_rows, loop.rows - iteration * loop.chunk_rows));
  }
  return result;
}

namespace {

class Resolver {
 public:
  Resolver(const StepProgram& program, const KernelTable& kernels, const Arenas& arenas, int threads,
           const RankContext& rank, ResolvedProgram& result)
      : program_(program),
        kernels_(kernels),
        places_(program, arenas),
        threads_(threads),
        rank_(rank),
        result_(result) {}

  void run() {
    result_.program = &program_;
    result_.call_is_awaited.assign(program_.calls.size(), false);
    result_.call_ended.resize(program_.calls.size());
    for (const Call& call : program_.calls) {
      for (const int32_t awaited : call.waits) result_.call_is_awaited[static_cast<size_t>(awaited)] = true;
    }
    update_begin_ = update_begin(program_);
    for (size_t c = 0; c < program_.calls.size(); ++c) {
      result_.call_begin.push_back(static_cast<int64_t>(result_.executions.size()));
      const auto id = static_cast<size_t>(program_.calls[c].template_id);
      result_.call_is_mixed.push_back(program_.templates[id].is_mixed());
      resolve_call(static_cast<int32_t>(c));
    }
    result_.call_begin.push_back(static_cast<int64_t>(result_.executions.size()));
  }

 private:
  void resolve_call(int32_t index) {
    const Call& call = program_.calls[static_cast<size_t>(index)];
    const Template& block = program_.templates[static_cast<size_t>(call.template_id)];
    const Graph& graph = block.graph;
    for (size_t i = 0; i < block.instructions.size();) {
      const int32_t region = graph.operations[static_cast<size_t>(block.instructions[i].operation)].region;
      size_t end = i + 1;
      int64_t iterations = 1;
      if (region >= 0) {
        while (end < block.instructions.size() &&
               graph.operations[static_cast<size_t>(block.instructions[end].operation)].region == region) {
          ++end;
        }
        iterations = graph.regions[static_cast<size_t>(region)].iterations();
      }
      for (int64_t iteration = 0; iteration < iterations; ++iteration) {
        for (size_t j = i; j < end; ++j) resolve_one(index, block, block.instructions[j], iteration);
      }
      i = end;
    }
  }

  void resolve_one(int32_t call_index, const Template& block, const Instruction& instruction,
                   int64_t iteration) {
    const Call& call = program_.calls[static_cast<size_t>(call_index)];
    const Operation& operation = block.graph.operations[static_cast<size_t>(instruction.operation)];
    Execution& execution = result_.executions.emplace_back();
    execution.address = {call_index, instruction.operation, static_cast<int32_t>(iteration)};
    execution.stream = instruction.stream;
    execution.joins = instruction.joins;
    execution.communicator = rank_.communicator;
    execution.operation = &operation;
    execution.graph = &block.graph;
    execution.step = &result_.step;
    const auto add = [&](ValueId id, std::vector<TensorView>& views, std::vector<OperandType>& types) {
      views.push_back(places_.view(call, id, operation.region, iteration));
      ATHANOR_ASSERT(id == no_value || views.back().present(), "{} of {} has no place",
                     block.graph.value(id).name, block.name);
      types.push_back({views.back().dtype, views.back().shape, views.back().present()});
    };
    for (const ValueId id : operation.inputs) add(id, execution.inputs, execution.input_types);
    for (const ValueId id : operation.outputs) add(id, execution.outputs, execution.output_types);
    set_arguments(call, block, instruction, iteration, execution);
    if (row_of(operation.kind).is_collective) {
      ATHANOR_ASSERT(rank_.communicator != nullptr, "{} on one rank", name_of(operation.kind));
      execution.collective =
          std::make_unique<CollectiveTask>(rank_, operation, execution.arguments, label_of(call, block));
      if (static_cast<size_t>(call_index) > update_begin_) execution.late_failure = &result_.late_failure;
      return;
    }
    const DType key = key_dtype(execution.input_types, execution.output_types);
    execution.kernel = kernels_.find(operation.kind, key);
    if (execution.kernel == nullptr) {
      throw_user_error(fmt::format("this device has no kernel for {} in {} (needed by {})",
                                   name_of(operation.kind), name_of(key), block.name),
                       "choose another precision or device");
    }
    if (execution.kernel->prepare != nullptr) {
      execution.prepared = execution.kernel->prepare(execution.arguments, threads_);
      execution.arguments.prepared = execution.prepared.get();
    }
  }

  static std::string label_of(const Call& call, const Template& block) {
    std::string label = block.name;
    if (call.layer >= 0) label += fmt::format(", layer {}", call.layer);
    if (call.micro_batch >= 0) label += fmt::format(", micro-batch {}", call.micro_batch);
    return label;
  }

  void set_arguments(const Call& call, const Template& block, const Instruction& instruction,
                     int64_t iteration, Execution& execution) {
    const Operation& operation = *execution.operation;
    KernelArguments& arguments = execution.arguments;
    arguments.attributes = &operation.attributes;
    arguments.inputs = execution.inputs;
    arguments.outputs = execution.outputs;
    arguments.accumulate = iteration > 0 || (!call.accumulate.empty() &&
                                             call.accumulate[static_cast<size_t>(instruction.operation)]);
    arguments.micro_batch = std::max(call.micro_batch, 0);
    if (!operation.attributes.name.empty()) {
      arguments.name_hash = stable_hash(fill_layer(operation.attributes.name, call.layer));
    }
    if (!row_of(operation.kind).is_collective) {
      arguments.first = first_of_part(block.graph, operation, *rank_.mesh, rank_.coordinates);
      arguments.coordinate = coordinate(rank_.coordinates, operation.attributes.axis);
    }
    if (operation.attributes.table >= 0) {
      result_.tables.push_back(table_on_rank(block.graph, operation, *rank_.mesh, rank_.coordinates));
      arguments.table = &result_.tables.back();
    }
    if (instruction.workspace_bytes > 0) {
      arguments.workspace = {places_.address(call, instruction.workspace, 0),
                             static_cast<size_t>(instruction.workspace_bytes)};
    }
  }

  const StepProgram& program_;
  const KernelTable& kernels_;
  const Places places_;
  int threads_;
  const RankContext& rank_;
  ResolvedProgram& result_;
  size_t update_begin_ = 0;
};

}  // namespace

void resolve(const StepProgram& program, const KernelTable& kernels, const Arenas& arenas, int threads,
             const RankContext& rank, ResolvedProgram& result) {
  Resolver(program, kernels, arenas, threads, rank, result).run();
}

}  // namespace athanor
