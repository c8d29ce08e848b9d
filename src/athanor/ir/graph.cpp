#include "athanor/ir/graph.h"

#include <algorithm>
#include <array>

#include "athanor/base/error.h"

namespace athanor {

const char* name_of(Role role) {
  static constexpr std::array<const char*, role_count> names = {"activation",
                                                                "residual",
                                                                "statistic",
                                                                "parameter",
                                                                "parameter_gradient",
                                                                "residual_gradient",
                                                                "activation_gradient",
                                                                "batch",
                                                                "scalar",
                                                                "master",
                                                                "bucket_gradient",
                                                                "optimizer_state",
                                                                "working",
                                                                "cache"};
  return names.at(static_cast<size_t>(role));
}

const char* name_of(ParameterRole role) {
  static constexpr std::array<const char*, parameter_role_count> names = {"matrix", "embedding", "norm",
                                                                          "bias"};
  return names.at(static_cast<size_t>(role));
}

ValueId Graph::add_value(Value value) {
  values.push_back(std::move(value));
  return static_cast<ValueId>(values.size() - 1);
}

Operation& Graph::add_operation(OperationKind kind, std::vector<ValueId> operation_inputs,
                                std::vector<ValueId> operation_outputs, Attributes attributes, Part part) {
  const OperationRow& row = row_of(kind);
  const auto pad = [](std::vector<ValueId>& ids, const std::vector<Operand>& operands) {
    while (ids.size() < operands.size() && operands[ids.size()].optional) ids.push_back(no_value);
  };
  pad(operation_inputs, row.inputs);
  pad(operation_outputs, row.outputs);
  operations.push_back({.kind = kind,
                        .part = part,
                        .attributes = std::move(attributes),
                        .inputs = std::move(operation_inputs),
                        .outputs = std::move(operation_outputs)});
  return operations.back();
}

ValueId Graph::find(std::string_view value_name) const {
  const auto found =
      std::find_if(values.begin(), values.end(), [&](const Value& v) { return v.name == value_name; });
  return found == values.end() ? no_value : static_cast<ValueId>(found - values.begin());
}

std::vector<OperandType> types_of(const Graph& graph, std::span<const ValueId> values) {
  std::vector<OperandType> types;
  types.reserve(values.size());
  for (const ValueId id : values) {
    if (id == no_value) {
      types.emplace_back();
    } else {
      types.push_back({.dtype = graph.value(id).dtype, .shape = graph.value(id).shape, .present = true});
    }
  }
  return types;
}

namespace {

// The values that hold the rows of one iteration of a region.
std::vector<bool> chunk_values(const Graph& graph, int32_t region) {
  std::vector<bool> is_chunk(graph.values.size(), false);
  for (const Operation& operation : graph.operations) {
    if (operation.region != region || operation.kind == OperationKind::collect) continue;
    if (row_of(operation.kind).accumulates) continue;
    for (const ValueId id : operation.outputs) {
      if (id != no_value) is_chunk.at(static_cast<size_t>(id)) = true;
    }
  }
  return is_chunk;
}

}  // namespace

Cost cost_of(const Graph& graph, const Operation& operation) {
  const OperationRow& row = row_of(operation.kind);
  auto inputs = types_of(graph, operation.inputs), outputs = types_of(graph, operation.outputs);
  const Cost once = row.cost(operation.attributes, inputs, outputs);
  if (operation.region < 0) return once;

  const Region& region = graph.regions.at(static_cast<size_t>(operation.region));
  ATHANOR_ASSERT(region.chunk_rows > 0, "region {} without chunk_rows", region.name);
  const int64_t full_chunks = region.rows / region.chunk_rows;
  const auto full = static_cast<double>(full_chunks);
  Cost total{.flops = full * once.flops, .bytes = full * once.bytes, .sent = full * once.sent};
  const int64_t rest = region.rows % region.chunk_rows;
  if (rest == 0) return total;

  // The last chunk is shorter: its cost is that of the same operands with so many rows.
  const std::vector<bool> is_chunk = chunk_values(graph, operation.region);
  const auto shorten = [&](const std::vector<ValueId>& ids, std::vector<OperandType>& types) {
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] != no_value && is_chunk[static_cast<size_t>(ids[i])] && types[i].shape.rank() >= 2) {
        types[i].shape.set(1, rest);
      }
    }
  };
  shorten(operation.inputs, inputs);
  shorten(operation.outputs, outputs);
  const Cost last = row.cost(operation.attributes, inputs, outputs);
  return {
      .flops = total.flops + last.flops, .bytes = total.bytes + last.bytes, .sent = total.sent + last.sent};
}

}  // namespace athanor
