// The graph that the sharding pass writes: values in local shapes, each a global value in some placement.
//
// Internal to `compile` (shard.cpp and its lowerings). Thread safety: one thread.
#pragma once

#include <array>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor {

class ShardedGraph {
 public:
  // `global` holds the values whose placements are made here; it must outlive this.
  ShardedGraph(const Graph& global, const Mesh& mesh);

  Graph& graph() { return graph_; }
  const Graph& global() const { return global_; }
  const Mesh& mesh() const { return mesh_; }

  // A local value that holds `id` in these placements from now on. With another name and role if given.
  ValueId define(ValueId id, const Placements& placements);
  ValueId define(ValueId id, const Placements& placements, const std::string& name, Role role);
  // A local value that stands for no global value: `shape` is global.
  ValueId make(const std::string& name, DType dtype, const Shape& shape, const Placements& placements,
               Role role);
  ValueId make_like(ValueId local, const std::string& name, Role role);

  bool defined(ValueId id) const { return homes_.contains(id); }
  // What the value was defined in.
  const Placements& placements(ValueId id) const { return homes_.at(id).placements; }
  // The local value that holds `id` in the placements; collectives are appended where none does yet.
  ValueId in(ValueId id, const Placements& placements, Part part);

  Operation& append(OperationKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
                    const Attributes& attributes, Part part);
  std::string unique(const std::string& name);

  // What was gathered is dropped: backward gathers again instead of keeping whole activations. So are parts
  // of the batch, which are made anew from what both are given.
  void forget_gathered();

 private:
  struct Variant {
    Placements placements;
    ValueId local = no_value;
    bool gathered = false;
  };
  struct Home {
    Placements placements;
    std::vector<Variant> variants;
  };

  Variant convert(ValueId id, const Variant& from, Axis axis, const Placement& to, Part part);
  Variant step(ValueId id, const Variant& from, Axis axis, const Placement& to, Part part);

  const Graph& global_;
  Mesh mesh_;
  Graph graph_;
  std::map<ValueId, Home> homes_;
  std::set<std::string> names_;
  std::map<std::string, int> last_numbers_;  // by name: the last number behind it that was tried
};

}  // namespace athanor
