#include <map>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/compile/passes.h"

namespace athanor {

PrecisionPolicy policy_of(const CompileOptions& options, const Backend& backend,
                          std::vector<std::string>& notes) {
  PrecisionPolicy policy;
  switch (options.precision) {
    case Precision::fp64:
      policy = {DType::fp64, DType::fp64, DType::fp64};
      break;
    case Precision::fp32:
      policy = {DType::fp32, DType::fp32, DType::fp32};
      break;
    case Precision::bf16:
      policy = {DType::bf16, options.residual, DType::fp32};
      break;
    case Precision::fp16:
      policy = {DType::fp16, options.residual, DType::fp32};
      break;
  }
  if (backend.supports(OperationKind::matmul, policy.compute)) return policy;
  const DType wanted = policy.compute;
  for (const DType fallback : {DType::fp32, DType::fp64}) {
    if (!backend.supports(OperationKind::matmul, fallback)) continue;
    notes.push_back(fmt::format("precision: {} has no {} products; the model runs in {}", backend.name,
                                name_of(wanted), name_of(fallback)));
    return {fallback, fallback, fallback == DType::fp64 ? DType::fp64 : DType::fp32};
  }
  throw_user_error(fmt::format("{} has no products in {}, fp32 or fp64", backend.name, name_of(wanted)),
                   "choose another device");
}

namespace {

bool is_loss(OperationKind kind) {
  return kind == OperationKind::cross_entropy || kind == OperationKind::vocabulary_max ||
         kind == OperationKind::vocabulary_sums || kind == OperationKind::vocabulary_loss;
}

bool is_product(OperationKind kind) {
  return kind == OperationKind::matmul || kind == OperationKind::matmul_input_gradient ||
         kind == OperationKind::matmul_weight_gradient;
}

// By value: whether products have it as an operand, and nothing else reads it.
std::vector<bool> read_by_products_alone(const Graph& graph) {
  std::vector<bool> by_products(graph.values.size()), by_others(graph.values.size());
  for (const Operation& operation : graph.operations) {
    for (size_t i = 0; i < operation.inputs.size(); ++i) {
      if (operation.inputs[i] == no_value) continue;
      (is_product(operation.kind) && i < 2 ? by_products
                                           : by_others)[static_cast<size_t>(operation.inputs[i])] = true;
    }
  }
  for (const ValueId id : graph.outputs) by_others[static_cast<size_t>(id)] = true;
  for (size_t i = 0; i < by_products.size(); ++i) by_products[i] = by_products[i] && !by_others[i];
  return by_products;
}

Role role_of_cast(Role role) {
  return role == Role::residual_gradient ? Role::activation_gradient : Role::activation;
}

DType type_of(Role role, const PrecisionPolicy& policy) {
  switch (role) {
    case Role::activation:
    case Role::activation_gradient:
    case Role::parameter:
    case Role::working:
    case Role::cache:
      return policy.compute;
    case Role::residual:
    case Role::residual_gradient:
      return policy.residual;
    default:
      return policy.wide;
  }
}

}  // namespace

Segment assign_precision(Segment segment, const PrecisionPolicy& policy) {
  Graph& graph = segment.graph;
  for (Value& value : graph.values) {
    if (value.role != Role::batch && value.role != Role::scalar) value.dtype = type_of(value.role, policy);
  }
  for (const Operation& operation : graph.operations) {
    // Logits and what is computed from them are wide; only their gradient is narrowed for the products.
    if (is_loss(operation.kind)) graph.value(operation.inputs[0]).dtype = policy.wide;
  }
  const std::vector<bool> for_products = read_by_products_alone(graph);
  std::vector<Operation> result;
  std::map<ValueId, ValueId> narrowed;
  int64_t forward = 0;
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    const bool is_forward = static_cast<int64_t>(i) < segment.forward_count;
    if (static_cast<int64_t>(i) == segment.forward_count) narrowed.clear();  // backward casts for itself
    Operation operation = graph.operations[i];
    const auto narrow = [&](ValueId& id) {
      if (graph.value(id).dtype == policy.compute) return;
      if (!narrowed.contains(id)) {
        Value value = graph.value(id);
        value.name += is_forward ? ".cast" : ".cast_backward";
        value.dtype = policy.compute;
        value.role = role_of_cast(value.role);
        const ValueId cast = graph.add_value(std::move(value));
        narrowed[id] = cast;
        Operation inserted;
        inserted.kind = OperationKind::cast;
        inserted.part = operation.part;
        inserted.inputs = {id};
        inserted.outputs = {cast};
        result.push_back(std::move(inserted));
        if (is_forward) ++forward;
      }
      id = narrowed.at(id);
    };
    if (is_product(operation.kind)) {
      narrow(operation.inputs[0]);
      narrow(operation.inputs[1]);
    } else if (operation.kind == OperationKind::all_gather &&
               for_products[static_cast<size_t>(operation.outputs[0])]) {
      // What products read of other ranks travels as they read it.
      narrow(operation.inputs[0]);
      Value& gathered = graph.value(operation.outputs[0]);
      if (gathered.dtype != policy.compute) gathered.role = role_of_cast(gathered.role);
      gathered.dtype = policy.compute;
    }
    result.push_back(std::move(operation));
    if (is_forward) ++forward;
  }
  graph.operations = std::move(result);
  segment.forward_count = forward;
  return segment;
}

}  // namespace athanor
