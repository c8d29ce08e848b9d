#include "athanor/compile/storage.h"

#include <algorithm>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/compile/passes.h"

namespace athanor {

Storage::Storage(const Graph& graph, const std::vector<std::optional<Slot>>& bound, std::vector<bool> saved)
    : graph_(graph), bound_(bound), saved_(std::move(saved)) {
  written_.assign(graph.values.size(), -1);
  read_.assign(graph.values.size(), -1);
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    const Operation& operation = graph.operations[i];
    if (row_of(operation.kind).is_view) continue;
    for (const ValueId id : operation.outputs) {
      if (id != no_value) written_[static_cast<size_t>(id)] = static_cast<int64_t>(i);
    }
    for (const ValueId id : operation.inputs) {
      if (id != no_value) read_[static_cast<size_t>(id)] = static_cast<int64_t>(i);
    }
  }
  find_views();
  find_components();
}

int64_t Storage::bytes(ValueId id) const {
  const Value& value = graph_.value(id);
  return value.shape.elements() * static_cast<int64_t>(size_of(value.dtype));
}

void Storage::find_views() {
  for (const Operation& operation : graph_.operations) {
    const ValueId x = operation.inputs.empty() ? no_value : operation.inputs[0], y = operation.outputs[0];
    const int64_t rows =
        operation.region >= 0 ? graph_.regions[static_cast<size_t>(operation.region)].chunk_rows : 0;
    switch (operation.kind) {
      case OperationKind::slice:
        edges_.push_back({x, y, operation.attributes.offset, 0});
        break;
      case OperationKind::reshape:
        edges_.push_back({x, y, 0, 0});
        break;
      case OperationKind::chunk:
        edges_.push_back({x, y, 0, rows});
        break;
      case OperationKind::collect:
        edges_.push_back({y, x, 0, rows});
        break;
      case OperationKind::concat: {
        int64_t position = 0;
        for (const ValueId part : operation.inputs) {
          edges_.push_back({y, part, position, 0});
          position += width(part);
        }
        break;
      }
      default:
        break;
    }
  }
}

void Storage::find_components() {
  const size_t count = graph_.values.size();
  component_.assign(count, -1);
  position_.assign(count, 0);
  chunk_rows_.assign(count, 0);
  components_.clear();
  for (size_t start = 0; start < count; ++start) {
    if (component_[start] >= 0) continue;
    StorageComponent component;
    std::vector<ValueId> open{static_cast<ValueId>(start)};
    component_[start] = static_cast<int32_t>(components_.size());
    while (!open.empty()) {
      const ValueId id = open.back();
      open.pop_back();
      component.members.push_back(id);
      for (const Edge& edge : edges_) {
        if (edge.outer != id && edge.inner != id) continue;
        const ValueId other = edge.outer == id ? edge.inner : edge.outer;
        const int64_t there = position(id) + (edge.outer == id ? edge.position : -edge.position);
        if (component_[static_cast<size_t>(other)] >= 0) {
          ATHANOR_ASSERT(position(other) == there, "{} would lie in two places", graph_.value(other).name);
          continue;
        }
        component_[static_cast<size_t>(other)] = static_cast<int32_t>(components_.size());
        position_[static_cast<size_t>(other)] = there;
        open.push_back(other);
      }
    }
    measure(component);
    // Positions are relative to the owner, and a chunk is one of the owner.
    const int64_t origin = position(component.owner);
    for (const ValueId id : component.members) {
      position_[static_cast<size_t>(id)] -= origin;
      ATHANOR_ASSERT(position(id) >= 0 && position(id) + width(id) <= component.token_stride,
                     "{} does not lie within {}", graph_.value(id).name, graph_.value(component.owner).name);
    }
    components_.push_back(std::move(component));
  }
  for (bool changed = true; changed;) {  // what lies in a chunk is a chunk
    changed = false;
    for (const Edge& edge : edges_) {
      int64_t& inner = chunk_rows_[static_cast<size_t>(edge.inner)];
      int64_t& outer = chunk_rows_[static_cast<size_t>(edge.outer)];
      if (edge.chunk_rows > 0 && inner == 0) inner = edge.chunk_rows, changed = true;
      if (edge.chunk_rows == 0 && inner != outer) inner = outer = std::max(inner, outer), changed = true;
    }
  }
}

void Storage::measure(StorageComponent& component) const {
  const auto end = static_cast<int64_t>(graph_.operations.size()) - 1;
  component.first = std::numeric_limits<int64_t>::max();
  component.last = -1;
  std::vector<int64_t> touched;
  bool chunked = false;
  for (const ValueId id : component.members) {
    const auto index = static_cast<size_t>(id);
    if (component.owner == no_value || bytes(id) > bytes(component.owner)) component.owner = id;
    if (bound_[index] && component.anchor == no_value) component.anchor = id;
    component.saved |= saved_[index];
    if (written_[index] >= 0) touched.push_back(written_[index]);
    if (read_[index] >= 0) touched.push_back(read_[index]);
    for (const Edge& edge : edges_) chunked |= edge.chunk_rows > 0 && (edge.inner == id || edge.outer == id);
  }
  component.token_stride = width(component.owner);
  component.bytes = bytes(component.owner);
  for (const int64_t operation : touched) {
    component.first = std::min(component.first, operation);
    component.last = std::max(component.last, operation);
  }
  if (touched.empty()) component.first = 0;
  if (component.saved) component.last = end;
  // What is used both inside and outside of a loop must keep its bytes through all iterations.
  for (size_t region = 0; region < graph_.regions.size(); ++region) {
    const auto inside = [&](int64_t operation) {
      return graph_.operations[static_cast<size_t>(operation)].region == static_cast<int32_t>(region);
    };
    const auto count = std::count_if(touched.begin(), touched.end(), inside);
    if (count == 0 || (count == static_cast<int64_t>(touched.size()) && !chunked)) continue;
    for (int64_t operation = 0; operation <= end; ++operation) {
      if (!inside(operation)) continue;
      component.first = std::min(component.first, operation);
      component.last = std::max(component.last, operation);
    }
  }
}

// No value that overlaps `in` is read after the operation or has to be kept.
bool Storage::dies_at(ValueId in, int64_t operation) const {
  const StorageComponent& component = components_[static_cast<size_t>(component_[static_cast<size_t>(in)])];
  if (component.anchor != no_value) return false;
  const int32_t region = graph_.operations[static_cast<size_t>(operation)].region;
  for (const ValueId id : component.members) {
    const bool overlaps = position(id) < position(in) + width(in) && position(in) < position(id) + width(id);
    if (!overlaps) continue;
    const auto index = static_cast<size_t>(id);
    if (saved_[index] || read_[index] > operation) return false;
    const int64_t writer = written_[index];
    if (region >= 0 && writer >= 0 && graph_.operations[static_cast<size_t>(writer)].region != region)
      return false;
  }
  return true;
}

bool Storage::try_share(size_t operation, ValueId in, ValueId out) {
  if (graph_.value(in).dtype != graph_.value(out).dtype || width(in) != width(out) || bytes(in) != bytes(out))
    return false;
  if (chunk_rows(in) > 0 || chunk_rows(out) > 0) return false;
  if (component_[static_cast<size_t>(in)] == component_[static_cast<size_t>(out)]) return false;
  if (!dies_at(in, static_cast<int64_t>(operation))) return false;
  const StorageComponent& from = component_of(in);
  const StorageComponent& to = component_of(out);
  if (to.token_stride == width(out)) {
    if (to.anchor != no_value && from.token_stride != width(in)) return false;  // a given place is compact
    edges_.push_back({in, out, 0, 0});
  } else if (from.token_stride == width(in)) {
    edges_.push_back({out, in, 0, 0});
  } else {
    return false;
  }
  return true;
}

void Storage::share_in_place() {
  for (size_t i = 0; i < graph_.operations.size(); ++i) {
    const Operation& operation = graph_.operations[i];
    const OperationRow& row = row_of(operation.kind);
    for (size_t o = 0; o < operation.outputs.size() && o < row.in_place.size(); ++o) {
      const int input = row.in_place[o];
      if (input < 0 || static_cast<size_t>(input) >= operation.inputs.size()) continue;
      const ValueId in = operation.inputs[static_cast<size_t>(input)], out = operation.outputs[o];
      if (in == no_value || out == no_value) continue;
      if (std::count(operation.inputs.begin(), operation.inputs.end(), in) != 1) continue;
      if (try_share(i, in, out)) find_components();
    }
  }
}

bool Storage::conflict(const Operation& a, const Operation& b) const {
  const auto meet = [&](const std::vector<ValueId>& some, const std::vector<ValueId>& others) {
    for (const ValueId id : some) {
      if (id == no_value) continue;
      for (const ValueId other : others) {
        if (other != no_value &&
            component_[static_cast<size_t>(id)] == component_[static_cast<size_t>(other)])
          return true;
      }
    }
    return false;
  };
  return meet(a.outputs, b.inputs) || meet(a.outputs, b.outputs) || meet(a.inputs, b.outputs);
}

void Storage::keep(const Operation& user, int64_t operation) {
  for (const auto* list : {&user.inputs, &user.outputs}) {
    for (const ValueId id : *list) {
      if (id == no_value) continue;
      StorageComponent& component = component_of(id);
      component.last = std::max(component.last, operation);
    }
  }
}

}  // namespace athanor
