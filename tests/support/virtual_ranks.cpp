#include "support/virtual_ranks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/ir/layer_name.h"
#include "athanor/ir/part.h"

namespace athanor {

namespace {

// Calls use(local element, global element or -1 for padding) for each element of a rank's part.
template <class Use>
void for_each_element(const Shape& whole, const std::vector<std::vector<Range>>& stored, const Use& use) {
  std::vector<std::vector<int64_t>> index;  // by dim: the global index of each local one
  int64_t elements = 1;
  for (const auto& ranges : stored) {
    index.emplace_back();
    for (const Range& range : ranges) {
      for (int64_t i = range.begin; i < range.end; ++i) index.back().push_back(i);
    }
    elements *= static_cast<int64_t>(index.back().size());
  }
  for (int64_t element = 0; element < elements; ++element) {
    int64_t rest = element, global = 0, stride = 1;
    bool padding = false;
    for (size_t dim = index.size(); dim-- > 0;) {
      const auto size = static_cast<int64_t>(index[dim].size());
      const int64_t at = index[dim][static_cast<size_t>(rest % size)];
      padding |= at >= whole[static_cast<int>(dim)];
      global += at * stride;
      stride *= whole[static_cast<int>(dim)];
      rest /= size;
    }
    use(element, padding ? int64_t{-1} : global);
  }
}

std::vector<double> part_of(const Whole& whole, const Placements& placements, const Mesh& mesh,
                            const Coordinates& at) {
  std::vector<double> part;
  for_each_element(whole.shape, stored_ranges(whole.shape, placements, mesh, at),
                   [&](int64_t, int64_t global) {
                     part.push_back(global < 0 ? 0 : whole.values[static_cast<size_t>(global)]);
                   });
  return part;
}

void put_part(Whole& whole, const std::vector<double>& part, const Placements& placements, const Mesh& mesh,
              const Coordinates& at) {
  for_each_element(whole.shape, stored_ranges(whole.shape, placements, mesh, at),
                   [&](int64_t element, int64_t global) {
                     if (global >= 0) {
                       whole.values[static_cast<size_t>(global)] = part[static_cast<size_t>(element)];
                     }
                   });
}

double read_number(DType dtype, const std::byte* at) {
  const auto as = [at](auto value) {
    std::memcpy(&value, at, sizeof(value));
    return static_cast<double>(value);
  };
  switch (dtype) {
    case DType::fp64:
      return as(double{});
    case DType::int32:
      return as(int32_t{});
    case DType::int64:
      return as(int64_t{});
    default:
      ADD_FAILURE() << "virtual ranks hold fp64 and integers, not " << name_of(dtype);
      return 0;
  }
}

void write_number(DType dtype, std::byte* at, double number) {
  const auto as = [at](auto value) { std::memcpy(at, &value, sizeof(value)); };
  switch (dtype) {
    case DType::fp64:
      return as(number);
    case DType::int32:
      return as(static_cast<int32_t>(number));
    case DType::int64:
      return as(static_cast<int64_t>(number));
    default:
      ADD_FAILURE() << "virtual ranks hold fp64 and integers, not " << name_of(dtype);
  }
}

}  // namespace

VirtualRanks::VirtualRanks(const Graph& graph, const Mesh& mesh) : graph_(graph), mesh_(mesh) {
  add_reference_kernels(kernels_);
  Coordinates at{};
  for (;;) {
    coordinates_.push_back(at);
    int axis = axis_count - 1;
    while (axis >= 0 && ++at[static_cast<size_t>(axis)] == mesh.sizes[static_cast<size_t>(axis)]) {
      at[static_cast<size_t>(axis--)] = 0;
    }
    if (axis < 0) break;
  }
  values_.resize(coordinates_.size());
  for (auto& values : values_) values.resize(graph.values.size());
  written_.resize(coordinates_.size());
  for (int rank = 0; rank < count(); ++rank) {
    for (size_t id = 0; id < graph.values.size(); ++id) make(static_cast<ValueId>(id), rank, -1, false);
  }
}

void VirtualRanks::make(ValueId id, int rank, int64_t rows, bool in_region) {
  const Value& value = graph_.value(id);
  Local& made = local(rank, id);
  made.dtype = value.dtype;
  made.shape = value.shape;
  if (in_region) made.shape.set(1, rows);
  made.bytes.assign(static_cast<size_t>(made.shape.elements()) * size_of(made.dtype), std::byte{0x5a});
}

std::vector<double> VirtualRanks::numbers(int rank, ValueId id) const {
  const Local& from = local(rank, id);
  std::vector<double> list(static_cast<size_t>(from.shape.elements()));
  for (size_t i = 0; i < list.size(); ++i) {
    list[i] = read_number(from.dtype, from.bytes.data() + i * size_of(from.dtype));
  }
  return list;
}

void VirtualRanks::store(int rank, ValueId id, const std::vector<double>& numbers, size_t first) {
  Local& to = local(rank, id);
  ATHANOR_ASSERT(first + numbers.size() <= static_cast<size_t>(to.shape.elements()),
                 "{} has {} elements, not {}", graph_.value(id).name, to.shape.elements(),
                 first + numbers.size());
  for (size_t i = 0; i < numbers.size(); ++i) {
    write_number(to.dtype, to.bytes.data() + (first + i) * size_of(to.dtype), numbers[i]);
  }
}

void VirtualRanks::set(const std::string& name, const Whole& whole) {
  const ValueId id = graph_.find(name);
  for (int rank = 0; rank < count(); ++rank) {
    store(rank, id,
          part_of(whole, graph_.value(id).placements, mesh_, coordinates_[static_cast<size_t>(rank)]));
  }
}

void VirtualRanks::set(const std::string& name, const std::vector<Whole>& wholes,
                       const std::vector<Placements>& placements) {
  const ValueId id = graph_.find(name);
  for (int rank = 0; rank < count(); ++rank) {
    size_t first = 0;
    for (size_t i = 0; i < wholes.size(); ++i) {
      const auto part = part_of(wholes[i], placements[i], mesh_, coordinates_[static_cast<size_t>(rank)]);
      store(rank, id, part, first);
      first += part.size();
    }
  }
}

void VirtualRanks::copy(const std::string& name, const VirtualRanks& from, const std::string& original) {
  const ValueId id = graph_.find(name), other = from.graph_.find(original);
  for (int rank = 0; rank < count(); ++rank) store(rank, id, from.numbers(rank, other));
}

void VirtualRanks::set_local(int rank, const std::string& name, const std::vector<double>& numbers) {
  store(rank, graph_.find(name), numbers);
}

std::vector<double> VirtualRanks::get_local(int rank, const std::string& name) const {
  return numbers(rank, graph_.find(name));
}

void VirtualRanks::run(const StepInputs& step) {
  step_ = step;
  for (auto& written : written_) written.clear();
  for (size_t begin = 0; begin < graph_.operations.size();) {
    const int32_t region = graph_.operations[begin].region;
    size_t end = begin + 1;
    while (end < graph_.operations.size() && graph_.operations[end].region == region) ++end;
    if (region < 0) {
      run_operations(begin, end, 0, -1);
    } else {
      const Region& loop = graph_.regions[static_cast<size_t>(region)];
      for (int64_t first = 0; first < loop.rows; first += loop.chunk_rows) {
        run_operations(begin, end, first, std::min(loop.chunk_rows, loop.rows - first));
      }
    }
    begin = end;
  }
}

void VirtualRanks::run_operations(size_t begin, size_t end, int64_t first_row, int64_t rows) {
  for (size_t i = begin; i < end; ++i) {
    const Operation& operation = graph_.operations[i];
    const OperationRow& row = row_of(operation.kind);
    ++executions_[operation.kind];
    if (rows >= 0 && !row.accumulates && operation.kind != OperationKind::collect) {
      for (const ValueId id : operation.outputs) {
        for (int rank = 0; id != no_value && rank < count(); ++rank) make(id, rank, rows, true);
      }
    }
    if (row.is_collective) {
      run_collective(operation);
      continue;
    }
    for (int rank = 0; rank < count(); ++rank) {
      if (row.is_view) {
        run_view(operation, rank, first_row);
      } else {
        run_kernel(operation, rank);
      }
    }
  }
}

void VirtualRanks::run_kernel(const Operation& operation, int rank) {
  std::vector<OperandType> input_types, output_types;
  std::vector<TensorView> inputs, outputs;
  const auto add = [&](ValueId id, std::vector<OperandType>& types, std::vector<TensorView>& views) {
    if (id == no_value) {
      types.emplace_back();
      views.emplace_back();
      return;
    }
    Local& tensor = local(rank, id);
    types.push_back({tensor.dtype, tensor.shape, true});
    views.push_back({tensor.bytes.data(), tensor.dtype, tensor.shape, tensor.shape.elements_per_token()});
  };
  for (const ValueId id : operation.inputs) add(id, input_types, inputs);
  for (const ValueId id : operation.outputs) add(id, output_types, outputs);
  const Kernel* kernel = kernels_.find(operation.kind, key_dtype(input_types, output_types));
  ASSERT_NE(kernel, nullptr) << name_of(operation.kind);
  const int64_t bytes = kernel->workspace_bytes == nullptr
                            ? 0
                            : kernel->workspace_bytes(operation.attributes, input_types, output_types, 1);
  std::vector<double> workspace(static_cast<size_t>((bytes + 7) / 8));
  const Coordinates& at = coordinates_[static_cast<size_t>(rank)];
  KernelArguments arguments;
  arguments.attributes = &operation.attributes;
  arguments.inputs = inputs;
  arguments.outputs = outputs;
  arguments.workspace = {reinterpret_cast<std::byte*>(workspace.data()), workspace.size() * 8};
  arguments.name_hash = stable_hash(fill_layer(operation.attributes.name, layer_));
  arguments.first = first_of_part(graph_, operation, mesh_, at);
  arguments.coordinate = coordinate(at, operation.attributes.axis);
  BucketTable table;
  if ((row_of(operation.kind).fields & mask_of(Field::table)) != 0) {
    table = table_on_rank(graph_, operation, mesh_, at);
    arguments.table = &table;
  }
  if (row_of(operation.kind).accumulates) {
    arguments.accumulate = !written_[static_cast<size_t>(rank)].insert(operation.outputs[0]).second;
  }
  static ThreadTeam team(1);
  kernel->run(arguments, KernelContext{.team = &team, .step = &step_});
}

void VirtualRanks::run_view(const Operation& operation, int rank, int64_t first_row) {
  const ValueId x = operation.inputs[0], y = operation.outputs[0];
  const size_t size = size_of(graph_.value(y).dtype);
  const auto row_bytes = [&](ValueId id) {
    return static_cast<size_t>(graph_.value(id).shape.elements_per_token()) * size;
  };
  // Copies rows of tokens: `count` of them, `bytes` each.
  const auto copy_rows = [&](ValueId from, int64_t from_row, size_t from_byte, ValueId to, int64_t to_row,
                             size_t to_byte, size_t bytes, int64_t count) {
    for (int64_t r = 0; r < count; ++r) {
      std::memcpy(
          local(rank, to).bytes.data() + static_cast<size_t>(to_row + r) * row_bytes(to) + to_byte,
          local(rank, from).bytes.data() + static_cast<size_t>(from_row + r) * row_bytes(from) + from_byte,
          bytes);
    }
  };
  const int64_t tokens = local(rank, y).shape.tokens();
  switch (operation.kind) {
    case OperationKind::reshape:
      local(rank, y).bytes = local(rank, x).bytes;
      return;
    case OperationKind::slice:
      return copy_rows(x, 0, static_cast<size_t>(operation.attributes.offset) * size, y, 0, 0, row_bytes(y),
                       tokens);
    case OperationKind::concat: {
      size_t at = 0;
      for (const ValueId part : operation.inputs) {
        copy_rows(part, 0, 0, y, 0, at, row_bytes(part), tokens);
        at += row_bytes(part);
      }
      return;
    }
    case OperationKind::chunk:
      return copy_rows(x, first_row, 0, y, 0, 0, row_bytes(y), tokens);
    case OperationKind::collect:
      return copy_rows(x, 0, 0, y, first_row, 0, row_bytes(y), local(rank, x).shape.tokens());
    default:
      ADD_FAILURE() << name_of(operation.kind) << " is no view";
  }
}

// The ranks that differ along the axis alone, by their coordinate on it.
std::vector<std::vector<int>> VirtualRanks::groups(Axis axis) const {
  std::map<Coordinates, std::vector<int>> found;
  for (int rank = 0; rank < count(); ++rank) {
    Coordinates others = coordinates_[static_cast<size_t>(rank)];
    others[static_cast<size_t>(axis)] = 0;
    found[others].push_back(rank);
  }
  std::vector<std::vector<int>> list;
  for (auto& [others, ranks] : found) list.push_back(std::move(ranks));
  return list;
}

void VirtualRanks::run_collective(const Operation& operation) {
  const Attributes& attributes = operation.attributes;
  const Mesh line = mesh_of(attributes.axis, attributes.ranks);
  const auto at = [&](size_t i) {
    Coordinates coordinates{};
    coordinates[static_cast<size_t>(attributes.axis)] = static_cast<int32_t>(i);
    return coordinates;
  };
  const auto from = placements_of(attributes.axis, attributes.from);
  const auto to = placements_of(attributes.axis, attributes.to);
  for (const std::vector<int>& group : groups(attributes.axis)) {
    ASSERT_EQ(static_cast<int32_t>(group.size()), attributes.ranks);
    if (operation.kind == OperationKind::shift) {
      for (size_t o = 0; o < operation.inputs.size(); ++o) {
        if (operation.inputs[o] == no_value) continue;
        for (size_t i = 0; i < group.size(); ++i) {
          const int sender = group[(i + group.size() - 1) % group.size()];
          local(group[i], operation.outputs[o]) = local(sender, operation.inputs[o]);
        }
      }
      continue;
    }
    if (operation.kind == OperationKind::reduce_members) {
      sum_members(operation, group);
      continue;
    }
    const ValueId x = operation.inputs[0], y = operation.outputs[0];
    std::vector<std::vector<double>> parts;
    for (const int rank : group) parts.push_back(numbers(rank, x));
    const auto combined = [&](size_t begin, size_t end, bool maximum) {
      std::vector<double> total = parts[begin];
      for (size_t i = begin + 1; i < end; ++i) {
        for (size_t e = 0; e < total.size(); ++e) {
          total[e] = maximum ? std::max(total[e], parts[i][e]) : total[e] + parts[i][e];
        }
      }
      return total;
    };
    switch (operation.kind) {
      case OperationKind::all_reduce: {
        const bool repeats = attributes.from.kind == PlacementKind::shard;
        const size_t neighbours = repeats ? attributes.from.repeat : group.size();
        for (size_t begin = 0; begin < group.size(); begin += neighbours) {
          const auto total =
              combined(begin, begin + neighbours, !repeats && attributes.from.reduction == Reduction::max);
          for (size_t i = begin; i < begin + neighbours; ++i) store(group[i], y, total);
        }
        break;
      }
      case OperationKind::reduce_scatter:
      case OperationKind::reduce_scatter_bucket: {
        const Whole total{local(group[0], x).shape, combined(0, group.size(), false)};
        for (size_t i = 0; i < group.size(); ++i) store(group[i], y, part_of(total, to, line, at(i)));
        break;
      }
      case OperationKind::all_gather:
      case OperationKind::all_to_all: {
        const bool gather = operation.kind == OperationKind::all_gather;
        Whole whole{local(group[0], x).shape, {}};
        whole.shape.set(attributes.from.dim, local(group[0], y).shape[attributes.from.dim]);
        whole.values.resize(static_cast<size_t>(whole.shape.elements()));
        for (size_t i = 0; i < group.size(); ++i) put_part(whole, parts[i], from, line, at(i));
        for (size_t i = 0; i < group.size(); ++i) {
          store(group[i], y, gather ? whole.values : part_of(whole, to, line, at(i)));
        }
        break;
      }
      default:
        ADD_FAILURE() << name_of(operation.kind) << " is no collective";
    }
  }
}

void VirtualRanks::sum_members(const Operation& operation, const std::vector<int>& group) {
  const Attributes& attributes = operation.attributes;
  const ValueId bucket = operation.outputs[0];
  const size_t neighbours =
      attributes.from.kind == PlacementKind::shard ? attributes.from.repeat : group.size();
  const auto first = static_cast<size_t>(attributes.offset), count = static_cast<size_t>(attributes.extent);
  for (size_t begin = 0; begin < group.size(); begin += neighbours) {
    std::vector<double> total(count, 0);
    for (size_t i = begin; i < begin + neighbours; ++i) {
      const std::vector<double> mine = numbers(group[i], bucket);
      for (size_t e = 0; e < count; ++e) total[e] += mine[first + e];
    }
    for (size_t i = begin; i < begin + neighbours; ++i) store(group[i], bucket, total, first);
  }
}

Whole VirtualRanks::get(const std::string& name, const Shape& shape) const {
  return get(name, shape, graph_.value(graph_.find(name)).placements, 0);
}

Whole VirtualRanks::get(const std::string& name, const Shape& shape, const Placements& placements,
                        int64_t first) const {
  const ValueId id = graph_.find(name);
  Whole whole{shape, std::vector<double>(static_cast<size_t>(shape.elements()), 0)};
  const auto size = static_cast<size_t>(storage_shape(shape, placements, mesh_).elements());
  const auto part = [&](int rank) {
    const std::vector<double> all = numbers(rank, id);
    EXPECT_LE(static_cast<size_t>(first) + size, all.size()) << name;
    const auto begin = all.begin() + first;
    return std::vector<double>(begin, begin + static_cast<int64_t>(size));
  };
  for (int rank = 0; rank < count(); ++rank) {
    // Who holds the same: the first of them counts.
    Coordinates original = coordinates_[static_cast<size_t>(rank)];
    for (int axis = 0; axis < axis_count; ++axis) {
      const Placement& placement = placements[static_cast<size_t>(axis)];
      int32_t& where = original[static_cast<size_t>(axis)];
      if (placement.kind == PlacementKind::replicate) where = 0;
      if (placement.kind == PlacementKind::shard && !placement.repeats_partial)
        where -= where % placement.repeat;
    }
    const std::vector<double> mine = part(rank);
    if (original != coordinates_[static_cast<size_t>(rank)]) {
      const auto other = std::find(coordinates_.begin(), coordinates_.end(), original) - coordinates_.begin();
      EXPECT_EQ(mine, part(static_cast<int>(other)))
          << name << " differs between ranks " << other << " and " << rank;
      continue;
    }
    for_each_element(shape, stored_ranges(shape, placements, mesh_, original),
                     [&](int64_t element, int64_t global) {
                       const double number = mine[static_cast<size_t>(element)];
                       if (global >= 0) {
                         whole.values[static_cast<size_t>(global)] += number;
                       } else if (graph_.value(id).role == Role::parameter_gradient) {
                         EXPECT_EQ(number, 0) << name << ": the gradient of padding";
                       }
                     });
  }
  return whole;
}

int64_t VirtualRanks::executions(OperationKind kind) const {
  const auto known = executions_.find(kind);
  return known == executions_.end() ? 0 : known->second;
}

}  // namespace athanor
