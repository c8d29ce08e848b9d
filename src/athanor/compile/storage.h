// Which values of a graph share storage: views of each other, and results that take their operand's place.
// Internal to `compile`. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "athanor/program/program.h"

namespace athanor {

// Values that lie in one another. The owner is the widest; the others stand at `position` within its rows.
struct StorageComponent {
  std::vector<ValueId> members;
  ValueId owner = no_value;
  ValueId anchor = no_value;    // a member whose place is given from outside, if any
  bool saved = false;           // holds a value that backward reads
  int64_t token_stride = 0;     // elements, of the owner
  int64_t bytes = 0;            // of the owner
  int64_t first = 0, last = 0;  // operations between which it must keep its bytes, inclusive
};

class Storage {
 public:
  Storage(const Graph& graph, const std::vector<std::optional<Slot>>& bound, std::vector<bool> saved);

  // Lets outputs take the storage of operands that die, where the operation's row allows it.
  void share_in_place();

  // Whether one of two operations writes what the other uses.
  bool conflict(const Operation& a, const Operation& b) const;
  // What the operation uses keeps its bytes until `operation`, too.
  void keep(const Operation& user, int64_t operation);

  int64_t bytes(ValueId id) const;
  // Whether the rows of a value stand apart.
  bool is_strided(ValueId id) const {
    return graph_.value(id).shape.rank() >= 2 &&
           components_[static_cast<size_t>(component_[static_cast<size_t>(id)])].token_stride != width(id);
  }
  const std::vector<StorageComponent>& components() const { return components_; }
  // Elements from the start of the owner's row.
  int64_t position(ValueId id) const { return position_[static_cast<size_t>(id)]; }
  // For a chunk of a whole tensor: rows the chunk moves on by each iteration; else 0.
  int64_t chunk_rows(ValueId id) const { return chunk_rows_[static_cast<size_t>(id)]; }

 private:
  struct Edge {
    ValueId outer = no_value, inner = no_value;  // inner lies within outer
    int64_t position = 0;
    int64_t chunk_rows = 0;
  };

  void find_views();
  void find_components();
  StorageComponent& component_of(ValueId id) {
    return components_[static_cast<size_t>(component_[static_cast<size_t>(id)])];
  }
  void measure(StorageComponent& component) const;
  bool try_share(size_t operation, ValueId in, ValueId out);
  bool dies_at(ValueId in, int64_t operation) const;
  int64_t width(ValueId id) const { return graph_.value(id).shape.elements_per_token(); }

  const Graph& graph_;
  const std::vector<std::optional<Slot>>& bound_;
  std::vector<bool> saved_;
  std::vector<Edge> edges_;
  std::vector<int32_t> component_;
  std::vector<int64_t> position_, chunk_rows_;
  std::vector<int64_t> written_,
      read_;  // operation that writes a value (-1: none), last that reads it (-1: none)
  std::vector<StorageComponent> components_;
};

}  // namespace athanor
