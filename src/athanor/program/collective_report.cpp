#include "athanor/program/collective_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace athanor {

namespace {

int64_t bytes_of(const Graph& graph, std::span<const ValueId> values) {
  int64_t bytes = 0;
  for (const OperandType& type : types_of(graph, values)) {
    if (type.present) bytes += type.shape.elements() * static_cast<int64_t>(size_of(type.dtype));
  }
  return bytes;
}

using Key = std::tuple<Axis, OperationKind, DType>;
using Counts = std::map<Key, CollectiveCount>;

void add(const Graph& graph, const Operation& operation, DType gradient_wire, Counts& counts) {
  // What works in place has an output alone.
  const DType kept = graph.value(operation.outputs.front()).dtype;
  const DType dtype = wire_type(operation.kind, kept, gradient_wire);
  const auto size = static_cast<int64_t>(size_of(dtype)), kept_size = static_cast<int64_t>(size_of(kept));
  CollectiveCount& entry = counts[{operation.attributes.axis, operation.kind, dtype}];
  entry.operation = operation.kind;
  entry.axis = operation.attributes.axis;
  entry.ranks = operation.attributes.ranks;
  entry.dtype = dtype;
  const int64_t times =
      operation.region < 0 ? 1 : graph.regions[static_cast<size_t>(operation.region)].iterations();
  int64_t bytes = std::max(bytes_of(graph, operation.inputs), bytes_of(graph, operation.outputs));
  if (operation.kind == OperationKind::reduce_members)  // of a bucket only some travel
    bytes = operation.attributes.extent * kept_size;
  bytes = bytes * size / kept_size;
  entry.count += times;
  entry.bytes += static_cast<double>(times) * static_cast<double>(bytes);
  entry.sent += cost_of(graph, operation).sent * static_cast<double>(size) / static_cast<double>(kept_size);
  entry.largest_bytes = std::max(entry.largest_bytes, bytes);
}

}  // namespace

std::vector<CollectiveCount> collectives_of(const StepProgram& program, DType gradient_wire) {
  std::vector<Counts> by_template;
  for (const Template& block : program.templates) {
    Counts& counts = by_template.emplace_back();
    for (const Operation& operation : block.graph.operations) {
      if (row_of(operation.kind).is_collective) add(block.graph, operation, gradient_wire, counts);
    }
  }
  Counts total;
  for (const Call& call : program.calls) {
    for (const auto& [key, once] : by_template[static_cast<size_t>(call.template_id)]) {
      const auto [place, added] = total.emplace(key, once);
      if (added) continue;
      CollectiveCount& entry = place->second;
      entry.count += once.count;
      entry.bytes += once.bytes;
      entry.sent += once.sent;
      entry.largest_bytes = std::max(entry.largest_bytes, once.largest_bytes);
    }
  }
  std::vector<CollectiveCount> list;
  for (const auto& [key, entry] : total) list.push_back(entry);
  return list;
}

std::string collectives_text(const StepProgram& program, DType gradient_wire) {
  const std::vector<CollectiveCount> list = collectives_of(program, gradient_wire);
  if (list.empty()) return {};
  std::string text = fmt::format(
      "collectives of a step, on each rank\n  {:10} {:>6} {:22} {:5} {:>9} {:>14} {:>14} {:>14}\n", "axis",
      "ranks", "operation", "type", "count", "MiB", "sent MiB", "largest MiB");
  double bytes = 0, sent = 0;
  int64_t count = 0;
  const auto mebibytes = [](double value) { return fmt::format("{:.2f}", value / 1048576.0); };
  for (const CollectiveCount& each : list) {
    text +=
        fmt::format("  {:10} {:>6} {:22} {:5} {:>9} {:>14} {:>14} {:>14}\n", name_of(each.axis), each.ranks,
                    name_of(each.operation), name_of(each.dtype), each.count, mebibytes(each.bytes),
                    mebibytes(each.sent), mebibytes(static_cast<double>(each.largest_bytes)));
    bytes += each.bytes;
    sent += each.sent;
    count += each.count;
  }
  return text + fmt::format("  {:10} {:>6} {:22} {:5} {:>9} {:>14} {:>14}\n", "all", "", "", "", count,
                            mebibytes(bytes), mebibytes(sent));
}

}  // namespace athanor
