#include "athanor/train/dump.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "athanor/base/error.h"
#include "athanor/checkpoint/safetensors.h"
#include "athanor/execute/resolved_program.h"
#include "athanor/train/tensor_parts.h"

namespace athanor {

namespace {

const StepProgram& training_program(const ProgramSet& set) {
  for (const StepProgram& program : set.programs) {
    if (program.kind == ProgramKind::train) return program;
  }
  ATHANOR_ASSERT(false, "no training program");
}

// A tensor "x.chunk" is a part of "x" as far as its name goes.
bool is_named(const std::string& tensor, const std::string& wanted) {
  return tensor == wanted || tensor == wanted + ".chunk";
}

bool names_layer(const std::string& name, int32_t layer) {
  return (name + ".").find(fmt::format(".{}.", layer)) != std::string::npos;
}

TensorView part_of(const TensorView& whole, const TensorPart& part) {
  TensorView view{whole.data + static_cast<size_t>(part.first) * size_of(whole.dtype), whole.dtype,
                  part.shape, 0};
  if (view.shape.rank() >= 2) view.token_stride = view.shape.elements_per_token();
  return view;
}

}  // namespace

void validate_dump_names(const ProgramSet& set, const std::vector<std::string>& names) {
  std::set<std::string> known;
  const StepProgram& program = training_program(set);
  for (const Call& call : program.calls) {
    const Template& block = program.templates[static_cast<size_t>(call.template_id)];
    for (size_t id = 0; id < block.graph.values.size(); ++id) {
      if (block.slots[id].base < 0) continue;
      known.insert(fill_layer(block.graph.values[id].name, call.layer));
      for (const TensorPart& part : parts_of(block.graph, block.graph.values[id])) {
        known.insert(fill_layer(part.name, call.layer));
      }
    }
  }
  for (const std::string& name : names) {
    if (known.contains(name) || known.contains(name + ".chunk")) continue;
    throw_user_error(fmt::format("debug.dump: the program has no tensor \"{}\"", name),
                     "`athanor show block` prints the names; {layer} stands for the layer's number");
  }
}

void TensorDump::observe(const StepProgram& program, const Observation& seen) {
  const Call& call = program.calls[static_cast<size_t>(seen.address.call)];
  const Template& block = program.templates[static_cast<size_t>(call.template_id)];
  const std::vector<Operation>& operations = block.graph.operations;
  const auto look_at = [&](const std::vector<ValueId>& ids, int32_t region) {
    for (const ValueId id : ids) look(block, call, id, region, seen);
  };
  const auto at = static_cast<size_t>(seen.address.operation);
  // Views have no instruction of their own: each is complete when the operation before it has run.
  const bool first = std::all_of(operations.begin(), operations.begin() + seen.address.operation,
                                 [](const Operation& operation) { return row_of(operation.kind).is_view; });
  for (size_t i = 0; first && i < at; ++i) look_at(operations[i].outputs, operations[i].region);
  look_at(operations[at].inputs, operations[at].region);
  look_at(operations[at].outputs, operations[at].region);
  for (size_t i = at + 1; i < operations.size() && row_of(operations[i].kind).is_view; ++i) {
    look_at(operations[i].outputs, operations[i].region);
  }
}

void TensorDump::look(const Template& block, const Call& call, ValueId id, int32_t region,
                      const Observation& seen) {
  if (id == no_value) return;
  const Value& value = block.graph.value(id);
  const std::string whole = fill_layer(value.name, call.layer);
  const std::vector<TensorPart> parts = parts_of(block.graph, value);
  const auto consider = [&](const std::string& name, const TensorPart* part) {
    for (const std::string& wanted : names_) {
      if (!is_named(name, wanted)) continue;
      const TensorView view = seen.view_of(id, region);
      if (!view.present()) continue;
      std::string key = wanted;
      if (call.micro_batch >= 0) key += fmt::format(".micro_batch.{}", call.micro_batch);
      if (call.layer >= 0 && !names_layer(wanted, call.layer)) key += fmt::format(".layer.{}", call.layer);
      if (name != wanted) key += fmt::format(".chunk.{}", seen.address.iteration);
      take(key, part == nullptr ? view : part_of(view, *part));
    }
  };
  consider(whole, nullptr);
  if (parts.size() == 1) return;
  for (const TensorPart& part : parts) consider(fill_layer(part.name, call.layer), &part);
}

void TensorDump::take(const std::string& name, const TensorView& view) {
  Taken taken{name, view.dtype, {}, {}};
  for (int dim = 0; dim < view.shape.rank(); ++dim) taken.shape.push_back(view.shape[dim]);
  const size_t element = size_of(view.dtype);
  taken.bytes.resize(static_cast<size_t>(view.shape.elements()) * element);
  if (view.compact()) {
    std::memcpy(taken.bytes.data(), view.data, taken.bytes.size());
  } else {
    const auto width = static_cast<size_t>(view.shape.elements_per_token()) * element;
    for (int64_t token = 0; token < view.shape.tokens(); ++token) {
      std::memcpy(taken.bytes.data() + static_cast<size_t>(token) * width,
                  view.data + token * view.token_stride * static_cast<int64_t>(element), width);
    }
  }
  const auto same = std::find_if(taken_.begin(), taken_.end(),
                                 [&](const Taken& other) { return other.name == taken.name; });
  if (same != taken_.end()) {
    *same = std::move(taken);
  } else {
    taken_.push_back(std::move(taken));
  }
}

int64_t TensorDump::write(FileEnvironment& files, const std::string& path) const {
  std::vector<TensorBytes> tensors;
  for (const Taken& taken : taken_) tensors.push_back({taken.name, taken.dtype, taken.shape, taken.bytes});
  write_safetensors(files, path, tensors, {});
  return static_cast<int64_t>(tensors.size());
}

}  // namespace athanor
