#include <map>

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
  std::vector<Operation> result;
  std::map<ValueId, ValueId> narrowed;
  int64_t forward = 0;
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    if (static_cast<int64_t>(i) == segment.forward_count) narrowed.clear();  // backward casts for itself
    Operation operation = graph.operations[i];
    const bool product = operation.kind == OperationKind::matmul ||
                         operation.kind == OperationKind::matmul_input_gradient ||
                         operation.kind == OperationKind::matmul_weight_gradient;
    if (product) {
      for (size_t operand = 0; operand < 2; ++operand) {
        ValueId& id = operation.inputs[operand];
        if (graph.value(id).dtype == policy.compute) continue;
        if (!narrowed.contains(id)) {
          Value value = graph.value(id);
          value.name += i < static_cast<size_t>(segment.forward_count) ? ".cast" : ".cast_backward";
          value.dtype = policy.compute;
          value.role = value.role == Role::residual_gradient ? Role::activation_gradient : Role::activation;
          const ValueId cast = graph.add_value(std::move(value));
          narrowed[id] = cast;
          Operation inserted;
          inserted.kind = OperationKind::cast;
          inserted.part = operation.part;
          inserted.inputs = {id};
          inserted.outputs = {cast};
          result.push_back(std::move(inserted));
          if (static_cast<int64_t>(i) < segment.forward_count) ++forward;
        }
        id = narrowed.at(id);
      }
    }
    result.push_back(std::move(operation));
    if (static_cast<int64_t>(i) < segment.forward_count) ++forward;
  }
  graph.operations = std::move(result);
  segment.forward_count = forward;
  return segment;
}

}  // namespace athanor
