#include "athanor/program/program.h"

#include <algorithm>

namespace athanor {

const char* name_of(StreamKind kind) {
  static constexpr std::array<const char*, stream_kind_count> names = {"compute", "copy", "communication"};
  return names[static_cast<size_t>(kind)];
}

const char* name_of(BufferClass buffer_class) {
  static constexpr std::array<const char*, buffer_class_count> names = {
      "master weights", "working weights", "gradients",        "optimizer state",     "average weights",
      "cache",          "scalars",         "gathered weights", "unreduced gradients", "batch",
      "residual",       "saved",           "scratch"};
  return names[static_cast<size_t>(buffer_class)];
}

const char* name_of(ProgramKind kind) {
  static constexpr std::array<const char*, program_kind_count> names = {"train", "validate", "prefill",
                                                                        "decode", "gather"};
  return names[static_cast<size_t>(kind)];
}

int64_t aligned(int64_t bytes) {
  return (bytes + memory_alignment - 1) / memory_alignment * memory_alignment;
}

bool Template::is_mixed() const {
  const auto has = [&](StreamKind stream) {
    return std::ranges::any_of(instructions, [stream](const Instruction& i) { return i.stream == stream; });
  };
  return has(StreamKind::communication) && has(StreamKind::compute);
}

DType wire_type(OperationKind kind, DType dtype, DType gradient_wire) {
  const bool gradients =
      kind == OperationKind::reduce_members || kind == OperationKind::reduce_scatter_bucket;
  return gradients && dtype == DType::fp32 ? gradient_wire : dtype;
}

bool is_persistent(BufferClass buffer_class) {
  return buffer_class <= BufferClass::scalars;
}

bool changes_weights(const Template& block) {
  return std::ranges::any_of(block.graph.operations, [&](const Operation& operation) {
    return std::ranges::any_of(operation.outputs, [&](ValueId id) {
      return id != no_value && block.graph.value(id).role == Role::master;
    });
  });
}

size_t update_begin(const StepProgram& program) {
  const auto updates = [&](const Call& call) {
    return changes_weights(program.templates[static_cast<size_t>(call.template_id)]);
  };
  return static_cast<size_t>(std::ranges::find_if(program.calls, updates) - program.calls.begin());
}

MemoryReport memory_report(const StepProgram& program, int64_t persistent_bytes) {
  MemoryReport report;
  report.persistent_bytes = persistent_bytes;
  report.transient_bytes = program.transient_bytes;
  std::vector<int64_t> live(program.calls.size() + 1, 0);
  for (const Buffer& buffer : program.buffers) {
    if (is_persistent(buffer.buffer_class)) {
      report.peak_bytes[static_cast<size_t>(buffer.buffer_class)] += buffer.bytes;
    } else if (buffer.first_call >= 0) {
      live[static_cast<size_t>(buffer.first_call)] += buffer.bytes;
      live[static_cast<size_t>(buffer.last_call) + 1] -= buffer.bytes;
    }
  }
  int64_t now = 0, most = -1;
  for (size_t call = 0; call < program.calls.size(); ++call) {
    now += live[call];
    if (now > most) {
      most = now;
      report.peak_call = static_cast<int32_t>(call);
    }
  }
  for (const Buffer& buffer : program.buffers) {
    if (!is_persistent(buffer.buffer_class) && buffer.first_call <= report.peak_call &&
        report.peak_call <= buffer.last_call) {
      report.peak_bytes[static_cast<size_t>(buffer.buffer_class)] += buffer.bytes;
    }
  }
  return report;
}

Cost cost_of(const StepProgram& program) {
  std::vector<Cost> by_template;
  for (const Template& block : program.templates) {
    Cost cost;
    for (const Operation& operation : block.graph.operations) {
      const Cost one = cost_of(block.graph, operation);
      cost.flops += one.flops;
      cost.bytes += one.bytes;
      cost.sent += one.sent;
    }
    by_template.push_back(cost);
  }
  Cost total;
  for (const Call& call : program.calls) {
    total.flops += by_template[static_cast<size_t>(call.template_id)].flops;
    total.bytes += by_template[static_cast<size_t>(call.template_id)].bytes;
    total.sent += by_template[static_cast<size_t>(call.template_id)].sent;
  }
  return total;
}

}  // namespace athanor
