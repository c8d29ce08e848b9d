#include "athanor/model/builder.h"

#include "athanor/base/error.h"

namespace athanor {

Builder::Builder(std::string name, BucketTable own) {
  graph_.name = std::move(name);
  graph_.tables.push_back(std::move(own));
}

Graph Builder::finish(std::vector<ValueId> outputs) {
  graph_.outputs = std::move(outputs);
  verify(graph_);
  return std::move(graph_);
}

ValueId Builder::make(const std::string& name, Shape shape, Role role, DType dtype) {
  return graph_.add_value({.name = name, .dtype = dtype, .shape = shape, .placements = {}, .role = role});
}

ValueId Builder::input(const std::string& name, Shape shape, DType dtype, Role role) {
  const ValueId id = make(name, shape, role, dtype);
  graph_.inputs.push_back(id);
  return id;
}

ValueId Builder::parameter(const std::string& name) {
  if (const ValueId known = graph_.find(name); known != no_value) return known;
  for (const BucketTable& table : graph_.tables) {
    for (const BucketMember& member : table.members) {
      if (member.name == name) return input(name, member.shape, DType::fp32, Role::parameter);
    }
  }
  ATHANOR_ASSERT(false, "no parameter {} in {}", name, graph_.name);
  return no_value;
}

ValueId Builder::embedding(const std::string& name, ValueId table, ValueId ids, Role role) {
  Shape shape = graph_.value(ids).shape;
  shape.append(graph_.value(table).shape[1]);
  const ValueId y = make(name, shape, role);
  graph_.add_operation(OperationKind::embedding, {table, ids}, {y});
  return y;
}

ValueId Builder::matmul(const std::string& name, ValueId x, ValueId weight, ValueId bias) {
  Shape shape = graph_.value(x).shape;
  shape.set(-1, graph_.value(weight).shape[0]);
  const ValueId y = make(name, shape, Role::activation);
  graph_.add_operation(OperationKind::matmul, {x, weight, bias}, {y, no_value});
  return y;
}

ValueId Builder::norm(const std::string& name, ValueId x, ValueId weight, ValueId bias, double epsilon,
                      bool centred) {
  const Shape shape = graph_.value(x).shape;
  Shape statistic;
  for (int i = 0; i + 1 < shape.rank(); ++i) statistic.append(shape[i]);
  const ValueId y = make(name, shape, Role::activation);
  Attributes attributes;
  attributes.epsilon = epsilon;
  if (centred) {
    const ValueId mean = make(name + ".mean", statistic, Role::statistic);
    const ValueId rstd = make(name + ".rstd", statistic, Role::statistic);
    graph_.add_operation(OperationKind::layer_norm, {x, weight, bias, no_value}, {y, mean, rstd, no_value},
                         attributes);
  } else {
    const ValueId rstd = make(name + ".rstd", statistic, Role::statistic);
    graph_.add_operation(OperationKind::rms_norm, {x, weight, no_value}, {y, rstd, no_value}, attributes);
  }
  return y;
}

ValueId Builder::unary(OperationKind kind, const std::string& name, ValueId x) {
  const ValueId y = make(name, graph_.value(x).shape, Role::activation);
  graph_.add_operation(kind, {x}, {y});
  return y;
}

ValueId Builder::binary(OperationKind kind, const std::string& name, ValueId a, ValueId b, Role role) {
  const ValueId y = make(name, graph_.value(a).shape, role);
  graph_.add_operation(kind, {a, b}, {y});
  return y;
}

ValueId Builder::reshape(const std::string& name, ValueId x, Shape shape) {
  const ValueId y = make(name, shape, Role::activation);
  graph_.add_operation(OperationKind::reshape, {x}, {y});
  return y;
}

}  // namespace athanor
