// Runs a graph on all ranks of a mesh in lockstep, within one thread: the reference kernels for what
// computes, plain loops over the ranks' tensors for collectives. The oracle of what sharded graphs mean.
//
// Float values are fp64, integers whatever the graph says. Used by tests only.
#pragma once

#include <map>
#include <set>
#include <string>
#include <vector>

#include "athanor/ir/graph.h"
#include "athanor/kernels/kernel.h"

namespace athanor {

// A tensor as if there were one device; integers are held exactly.
struct Whole {
  Shape shape;
  std::vector<double> values;
};

class VirtualRanks {
 public:
  VirtualRanks(const Graph& graph, const Mesh& mesh);

  int count() const { return static_cast<int>(coordinates_.size()); }
  const Graph& graph() const { return graph_; }

  // Gives every rank its part of an input, zeros where it is padded.
  void set(const std::string& name, const Whole& whole);
  // An input that covers neighbours of a bucket: the parts of each, one after the other.
  void set(const std::string& name, const std::vector<Whole>& wholes,
           const std::vector<Placements>& placements);
  // What another graph's ranks have, value by value.
  void copy(const std::string& name, const VirtualRanks& from) { copy(name, from, name); }
  void copy(const std::string& name, const VirtualRanks& from, const std::string& original);
  // One rank's elements, as they are stored.
  void set_local(int rank, const std::string& name, const std::vector<double>& numbers);
  std::vector<double> get_local(int rank, const std::string& name) const;
  const Coordinates& coordinates(int rank) const { return coordinates_[static_cast<size_t>(rank)]; }
  void set_layer(int64_t layer) { layer_ = layer; }  // fills in "{layer}"

  void run(const StepInputs& step);

  // The whole value: partial sums added, parts put together. Ranks that should hold the same must, to the
  // bit, and padding of a parameter's gradient must be zero: test failures otherwise.
  Whole get(const std::string& name, const Shape& shape) const;
  // Of `element`s [first, ..) of a value that covers neighbours of a bucket, in placements of its own.
  Whole get(const std::string& name, const Shape& shape, const Placements& placements, int64_t first) const;
  bool has(const std::string& name) const { return graph_.find(name) != no_value; }
  // How often operations of a kind ran on each rank.
  int64_t executions(OperationKind kind) const;

 private:
  struct Local {
    DType dtype{};
    Shape shape;
    std::vector<std::byte> bytes;
  };

  void run_operations(size_t begin, size_t end, int64_t first_row, int64_t rows);
  void run_kernel(const Operation& operation, int rank);
  void run_view(const Operation& operation, int rank, int64_t first_row);
  void run_collective(const Operation& operation);
  void sum_members(const Operation& operation, const std::vector<int>& group);
  std::vector<std::vector<int>> groups(Axis axis) const;
  Local& local(int rank, ValueId id) { return values_[static_cast<size_t>(rank)][static_cast<size_t>(id)]; }
  const Local& local(int rank, ValueId id) const {
    return values_[static_cast<size_t>(rank)][static_cast<size_t>(id)];
  }
  void make(ValueId id, int rank, int64_t rows, bool in_region);
  std::vector<double> numbers(int rank, ValueId id) const;
  void store(int rank, ValueId id, const std::vector<double>& numbers, size_t first = 0);

  Graph graph_;
  Mesh mesh_;
  std::vector<Coordinates> coordinates_;
  std::vector<std::vector<Local>> values_;  // by rank, by value
  std::vector<std::set<ValueId>> written_;  // by rank: of values that are added to
  std::map<OperationKind, int64_t> executions_;
  KernelTable kernels_;
  int64_t layer_ = 0;
  StepInputs step_;
};

}  // namespace athanor
