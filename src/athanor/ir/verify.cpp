#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "athanor/base/error.h"
#include "athanor/ir/graph.h"

namespace athanor {

namespace {

// What dtypes an operand takes, by its name in the table of operations.
enum class DTypeClass : uint8_t {
  any_float,
  wide_float,  // fp32 or fp64: statistics, gradients of parameters, losses, optimizer state
  fp64,
  int32,
  int64,
};

struct NamedClass {
  std::string_view operand;
  DTypeClass dtype_class;
};

constexpr NamedClass named_classes[] = {
    {"ids", DTypeClass::int32},
    {"token_ids", DTypeClass::int32},
    {"labels", DTypeClass::int32},
    {"positions", DTypeClass::int32},
    {"key_positions", DTypeClass::int32},
    {"key_documents", DTypeClass::int32},
    {"key_indices", DTypeClass::int32},
    {"logsumexp_before", DTypeClass::wide_float},
    {"row_max", DTypeClass::wide_float},
    {"sums", DTypeClass::wide_float},
    {"documents", DTypeClass::int32},
    {"indices", DTypeClass::int32},
    {"lengths", DTypeClass::int32},
    {"cache_rows", DTypeClass::int32},
    {"sample_ids", DTypeClass::int64},
    {"valid_tokens", DTypeClass::fp64},
    {"total", DTypeClass::fp64},  // of sum; a norm's total is any float, see class_of
    {"norms", DTypeClass::fp64},
    {"gradient_norm", DTypeClass::fp64},
    {"clip_factor", DTypeClass::fp64},
    {"skip", DTypeClass::fp64},
    {"mean", DTypeClass::wide_float},
    {"rstd", DTypeClass::wide_float},
    {"logsumexp", DTypeClass::wide_float},
    {"token_loss", DTypeClass::wide_float},
    {"dweight", DTypeClass::wide_float},
    {"dbias", DTypeClass::wide_float},
    {"dtable", DTypeClass::wide_float},
    {"gradient", DTypeClass::wide_float},
    {"master", DTypeClass::wide_float},
    {"first_moment", DTypeClass::wide_float},
    {"second_moment", DTypeClass::wide_float},
    {"momentum_buffer", DTypeClass::wide_float},
    {"average", DTypeClass::wide_float},
};

DTypeClass class_of(OperationKind kind, std::string_view operand) {
  if (operand == "total" && kind != OperationKind::sum) return DTypeClass::any_float;
  for (const NamedClass& named : named_classes) {
    if (named.operand == operand) return named.dtype_class;
  }
  return DTypeClass::any_float;
}

const char* text_of(DTypeClass dtype_class) {
  static constexpr std::array<const char*, 5> names = {"a float type", "fp32 or fp64", "fp64", "int32",
                                                       "int64"};
  return names[static_cast<size_t>(dtype_class)];
}

bool fits(DType dtype, DTypeClass dtype_class) {
  switch (dtype_class) {
    case DTypeClass::any_float:
      return is_float(dtype);
    case DTypeClass::wide_float:
      return dtype == DType::fp32 || dtype == DType::fp64;
    case DTypeClass::fp64:
      return dtype == DType::fp64;
    case DTypeClass::int32:
      return dtype == DType::int32;
    case DTypeClass::int64:
      return dtype == DType::int64;
  }
  return false;
}

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph), states_(graph.values.size()) {}

  void run() {
    check_values();
    check_tables();
    for (const Region& region : graph_.regions) {
      if (region.rows < 0 || region.chunk_rows <= 0) {
        fail(fmt::format("region {} has {} rows in chunks of {}", region.name, region.rows,
                         region.chunk_rows));
      }
    }
    for (const ValueId id : graph_.inputs) {
      State& state = state_of(id, "the graph's inputs");
      if (state.written) fail(fmt::format("{} is twice among the graph's inputs", describe(id)));
      state.written = true;
    }
    index_ = 0;
    for (const Operation& operation : graph_.operations) {
      check_operation(operation);
      ++index_;
    }
    index_ = -1;
    region_ = -1;
    std::set<ValueId> seen;
    for (const ValueId id : graph_.outputs) {
      read(id, "the graph's outputs");
      if (!seen.insert(id).second) fail(fmt::format("{} is twice among the graph's outputs", describe(id)));
    }
  }

 private:
  struct State {
    bool written = false;
    bool read = false;
    bool accumulated = false;  // every writer so far adds to it
    int32_t whole_after = -1;  // the region whose iterations each write or add a part of it
    int32_t chunk_of = -1;     // the region in which it holds one iteration's rows
  };

  // `index_` is the operation at fault, -1 outside of operations.
  [[noreturn]] void fail(const std::string& problem) const {
    std::string where = fmt::format("graph {}", graph_.name);
    if (index_ >= 0) {
      where += fmt::format(", operation {} ({})", index_,
                           name_of(graph_.operations[static_cast<size_t>(index_)].kind));
    }
    throw Error(ErrorKind::stop_job, fmt::format("{}: {}", where, problem),
                "this is a fault of the program, not of its options");
  }

  std::string describe(ValueId id) const { return fmt::format("value %{} ({})", id, graph_.value(id).name); }

  State& state_of(ValueId id, std::string_view where) {
    if (id < 0 || id >= static_cast<ValueId>(states_.size())) {
      fail(fmt::format("{}: there is no value %{}", where, id));
    }
    return states_[static_cast<size_t>(id)];
  }

  void check_values() const {
    std::set<std::string_view> names;
    for (const Value& value : graph_.values) {
      if (value.name.empty()) fail("a value has no name");
      if (!names.insert(value.name).second) fail(fmt::format("two values are named {}", value.name));
      for (const Placement& placement : value.placements) {
        if (placement.kind == PlacementKind::shard && placement.dim >= value.shape.rank()) {
          fail(fmt::format("{} {} is sharded along dim {}", value.name, to_text(value.shape), placement.dim));
        }
      }
    }
  }

  void check_tables() const {
    std::set<std::string_view> table_names, member_names;
    for (const BucketTable& table : graph_.tables) {
      if (!table_names.insert(table.name).second) fail(fmt::format("two tables are named {}", table.name));
      int64_t end = 0;
      for (const BucketMember& member : table.members) {
        if (!member_names.insert(member.name).second)
          fail(fmt::format("two parameters are named {}", member.name));
        if (member.offset < end) {
          fail(fmt::format("table {}: {} starts at {}, within the one before it", table.name, member.name,
                           member.offset));
        }
        end = member.offset + member.length();
      }
    }
  }

  void check_operation(const Operation& operation) {
    const OperationRow& row = row_of(operation.kind);
    check_operands(operation.inputs, row.inputs, row.variadic, "input");
    check_operands(operation.outputs, row.outputs, false, "output");
    const std::string foreign = to_text(operation.attributes, ~row.fields);
    if (!foreign.empty()) fail(fmt::format("it has no attribute {}", foreign));
    enter_region(operation);
    check_dtypes(operation, row);
    const auto inputs = types_of(graph_, operation.inputs), outputs = types_of(graph_, operation.outputs);
    if (const auto problem = row.check(operation.attributes, inputs, outputs)) fail(*problem);
    check_table(operation, row);
    check_chunk(operation);
    check_placements(operation);
    for (size_t i = 0; i < operation.inputs.size(); ++i) {
      if (operation.inputs[i] != no_value) read(operation.inputs[i], operand_name(row.inputs, i));
    }
    for (size_t i = 0; i < operation.outputs.size(); ++i) {
      if (operation.outputs[i] != no_value) write(operation, row, i);
    }
  }

  static std::string_view operand_name(const std::vector<Operand>& operands, size_t index) {
    return operands[std::min(index, operands.size() - 1)].name;
  }

  void check_operands(const std::vector<ValueId>& ids, const std::vector<Operand>& operands, bool variadic,
                      std::string_view what) {
    if (ids.size() != operands.size() && !(variadic && ids.size() > operands.size())) {
      fail(fmt::format("{} {}s where {} are needed", ids.size(), what, operands.size()));
    }
    std::set<ValueId> seen;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Operand& operand = operands[std::min(i, operands.size() - 1)];
      const std::string where = fmt::format("{} {}", what, operand.name);
      if (ids[i] == no_value && operand.optional) continue;
      if (ids[i] == no_value) fail(where + " is absent");
      state_of(ids[i], where);
      if (what == "output" && !seen.insert(ids[i]).second)
        fail(where + " is the same value as another output");
    }
  }

  void enter_region(const Operation& operation) {
    if (operation.region == region_) return;
    if (operation.region < -1 || operation.region >= static_cast<int32_t>(graph_.regions.size())) {
      fail(fmt::format("there is no region {}", operation.region));
    }
    region_ = operation.region;
    if (region_ >= 0 && !entered_.insert(region_).second) {
      fail(fmt::format("the operations of region {} do not stand together",
                       graph_.regions[static_cast<size_t>(region_)].name));
    }
  }

  void check_dtypes(const Operation& operation, const OperationRow& row) const {
    if (row.is_view) {
      const DType dtype = graph_.value(operation.outputs[0]).dtype;
      for (const ValueId id : operation.inputs) {
        if (graph_.value(id).dtype != dtype) {
          fail(fmt::format("{} is {} and its view is {}", describe(id), name_of(graph_.value(id).dtype),
                           name_of(dtype)));
        }
      }
      return;
    }
    if (row.is_collective || operation.kind == OperationKind::local_part) {
      for (size_t i = 0; i < operation.inputs.size(); ++i) {
        const ValueId in = operation.inputs[i], out = operation.outputs[i];
        if (in != no_value && out != no_value && graph_.value(in).dtype != graph_.value(out).dtype) {
          fail(fmt::format("{} is {} and what becomes of it {}", describe(in),
                           name_of(graph_.value(in).dtype), name_of(graph_.value(out).dtype)));
        }
      }
      return;
    }
    const auto check = [&](const std::vector<ValueId>& ids, const std::vector<Operand>& operands) {
      for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] == no_value) continue;
        const std::string_view operand = operand_name(operands, i);
        const DTypeClass dtype_class = class_of(operation.kind, operand);
        if (!fits(graph_.value(ids[i]).dtype, dtype_class)) {
          fail(fmt::format("{}: {} is {} where {} is needed", operand, describe(ids[i]),
                           name_of(graph_.value(ids[i]).dtype), text_of(dtype_class)));
        }
      }
    };
    check(operation.inputs, row.inputs);
    check(operation.outputs, row.outputs);
  }

  // The bucket and the norms fit the table of members.
  void check_table(const Operation& operation, const OperationRow& row) const {
    if ((row.fields & mask_of(Field::table)) == 0) return;
    const int64_t index = operation.attributes.table;
    if (index < 0 || index >= static_cast<int64_t>(graph_.tables.size()))
      fail(fmt::format("no table {}", index));
    const BucketTable& table = graph_.tables[static_cast<size_t>(index)];
    const int64_t length = graph_.value(operation.inputs[0]).shape.elements();
    const int64_t whole = operation.attributes.extent > 0 ? operation.attributes.extent : length;
    if (whole < table.length() || length > whole) {
      fail(fmt::format("a bucket of {} elements for table {} of {}", length, table.name, table.length()));
    }
    const auto members = static_cast<int64_t>(table.members.size());
    const auto expect_norms = [&](ValueId id, int64_t count) {
      if (graph_.value(id).shape.elements() != count) {
        fail(fmt::format("{} has {} norms where table {} needs {}", describe(id),
                         graph_.value(id).shape.elements(), table.name, count));
      }
    };
    if (operation.kind == OperationKind::squared_norms) expect_norms(operation.outputs[0], members);
    if (operation.kind == OperationKind::lamb_norms) expect_norms(operation.outputs[0], 2 * members);
    if (operation.kind == OperationKind::lamb) expect_norms(operation.inputs[3], 2 * members);
  }

  // chunk takes this iteration's rows of x, collect puts them there.
  void check_chunk(const Operation& operation) const {
    const bool collects = operation.kind == OperationKind::collect;
    if (operation.kind != OperationKind::chunk && !collects) return;
    if (operation.region < 0 || operation.attributes.region != operation.region) {
      fail(fmt::format("of region {} stands in region {}", operation.attributes.region, operation.region));
    }
    const Region& region = graph_.regions[static_cast<size_t>(operation.region)];
    const ValueId whole_id = collects ? operation.outputs[0] : operation.inputs[0];
    const ValueId part_id = collects ? operation.inputs[0] : operation.outputs[0];
    const Shape &whole = graph_.value(whole_id).shape, &part = graph_.value(part_id).shape;
    bool fits_whole = whole.rank() >= 2 && part.rank() == whole.rank() && whole.tokens() == region.rows;
    for (int dim = 2; fits_whole && dim < whole.rank(); ++dim) fits_whole = part[dim] == whole[dim];
    if (!fits_whole || part[0] != 1 || part[1] != region.chunk_rows) {
      fail(fmt::format("{} of {} in chunks of {} of {} rows", to_text(part), to_text(whole),
                       region.chunk_rows, region.rows));
    }
  }

  const Placement& placement(ValueId id, Axis axis) const {
    return graph_.value(id).placements[static_cast<size_t>(axis)];
  }

  void expect_placement(ValueId id, Axis axis, const Placement& expected) const {
    if (placement(id, axis) == expected) return;
    fail(fmt::format("{} is {} on axis {} where it must be {}", describe(id), to_text(placement(id, axis)),
                     name_of(axis), to_text(expected)));
  }

  // A collective turns the placement it is meant for into the one it makes, and leaves other axes alone. A
  // phase of the loss takes logits that are cut, never whole rows.
  void check_placements(const Operation& operation) const {
    const Attributes& attributes = operation.attributes;
    const ValueId in = operation.inputs.empty() ? no_value : operation.inputs[0], out = operation.outputs[0];
    const auto becomes = [&](const Placement& before, const Placement& after) {
      expect_placement(in, attributes.axis, before);
      expect_placement(out, attributes.axis, after);
      for (int axis = 0; axis < axis_count; ++axis) {
        if (static_cast<Axis>(axis) == attributes.axis) continue;
        expect_placement(out, static_cast<Axis>(axis), placement(in, static_cast<Axis>(axis)));
      }
    };
    switch (operation.kind) {
      case OperationKind::local_part:
        return becomes({}, attributes.to);
      case OperationKind::reduce_scatter:
      case OperationKind::reduce_scatter_bucket:
        return becomes({.kind = PlacementKind::partial}, attributes.to);
      case OperationKind::all_gather:
        return becomes(attributes.from, {});
      case OperationKind::all_to_all:
        return becomes(attributes.from, attributes.to);
      case OperationKind::all_reduce: {
        Placement whole;
        if (attributes.from.kind == PlacementKind::shard) {
          if (!attributes.from.repeats_partial) fail("an all_reduce of parts that are whole");
          whole = attributes.from;
          whole.repeats_partial = false;
        } else if (attributes.from.kind != PlacementKind::partial) {
          fail("an all_reduce of what is whole");
        }
        return becomes(attributes.from, whole);
      }
      case OperationKind::vocabulary_max:
      case OperationKind::vocabulary_sums:
      case OperationKind::vocabulary_loss: {
        const auto& placements = graph_.value(in).placements;
        const bool cut = std::any_of(placements.begin(), placements.end(), [](const Placement& p) {
          return p.kind == PlacementKind::shard && p.dim == 2;
        });
        if (!cut)
          fail(fmt::format("{} are whole rows where a part of the vocabulary is needed", describe(in)));
        return;
      }
      default:
        return;
    }
  }

  void read(ValueId id, std::string_view where) {
    State& state = state_of(id, where);
    if (!state.written) fail(fmt::format("{}: {} is read before it is written", where, describe(id)));
    if (state.chunk_of >= 0 && state.chunk_of != region_) {
      fail(fmt::format("{}: {} holds rows of one iteration and is read outside of its region", where,
                       describe(id)));
    }
    if (state.whole_after >= 0 && state.whole_after == region_) {
      fail(fmt::format("{}: {} is whole only after the region it is read in", where, describe(id)));
    }
    state.read = true;
  }

  void write(const Operation& operation, const OperationRow& row, size_t output) {
    const ValueId id = operation.outputs[output];
    const std::string_view where = row.outputs[output].name;
    State& state = states_[static_cast<size_t>(id)];
    if (row.updates_outputs) {  // state from outside: an input or an output of the graph
      if (!state.written &&
          std::find(graph_.outputs.begin(), graph_.outputs.end(), id) == graph_.outputs.end()) {
        fail(fmt::format("{}: {} is updated but comes from nowhere", where, describe(id)));
      }
      state.written = true;
      return;
    }
    if (state.written && !(row.accumulates && state.accumulated)) {
      fail(fmt::format("{}: {} is written twice", where, describe(id)));
    }
    if (state.read) fail(fmt::format("{}: {} is added to after it was read", where, describe(id)));
    state.written = true;
    state.accumulated = row.accumulates;
    if (region_ < 0) return;
    if (row.accumulates || operation.kind == OperationKind::collect) {
      state.whole_after = region_;
      return;
    }
    state.chunk_of = region_;
    const Region& region = graph_.regions[static_cast<size_t>(region_)];
    const Shape& shape = graph_.value(id).shape;
    if (shape.rank() < 2 || shape[0] != 1 || shape[1] != region.chunk_rows) {
      fail(fmt::format("{}: {} is {} in a region of chunks of {} rows", where, describe(id), to_text(shape),
                       region.chunk_rows));
    }
  }

  const Graph& graph_;
  std::vector<State> states_;
  std::set<int32_t> entered_;
  int32_t region_ = -1;
  int64_t index_ = -1;
};

}  // namespace

void verify(const Graph& graph) {
  Verifier(graph).run();
}

}  // namespace athanor
