// Small helper to write forward graphs: makes values and operations with inferred shapes. Internal to
// `model`. Thread safety: one thread each.
#pragma once

#include <string>
#include <utility>

#include "athanor/ir/graph.h"

namespace athanor {

class Builder {
 public:
  Builder(std::string name, BucketTable own);

  Graph& graph() { return graph_; }
  Graph finish(std::vector<ValueId> outputs);

  ValueId input(const std::string& name, Shape shape, DType dtype, Role role);
  // A parameter of one of the graph's tables, by its full name.
  ValueId parameter(const std::string& name);
  void add_table(BucketTable table) { graph_.tables.push_back(std::move(table)); }

  ValueId embedding(const std::string& name, ValueId table, ValueId ids, Role role);
  ValueId matmul(const std::string& name, ValueId x, ValueId weight, ValueId bias);
  ValueId norm(const std::string& name, ValueId x, ValueId weight, ValueId bias, double epsilon,
               bool centred);
  ValueId unary(OperationKind kind, const std::string& name, ValueId x);
  ValueId binary(OperationKind kind, const std::string& name, ValueId a, ValueId b, Role role);
  ValueId reshape(const std::string& name, ValueId x, Shape shape);
  ValueId make(const std::string& name, Shape shape, Role role, DType dtype = DType::fp32);

 private:
  Graph graph_;
};

}  // namespace athanor
