#include "athanor/train/dump.h"

#include <algorithm>
#include <cstring>
#include <set>

#include "athanor/base/error.h"
#include "athanor/checkpoint/safetensors.h"
#include "athanor/execute/loaded_program.h"

namespace athanor {

namespace {

const StepProgram& training_program(const ProgramSet& set) {
  for (const StepProgram& program : set.programs) {
    if (program.kind == ProgramKind::train) return program;
  }
  ATHANOR_ASSERT(false, "no training program");
  return set.programs.front();
}

// "x.chunk" is a part of "x" as far as its name goes.
bool is_named(const std::string& tensor, const std::string& wanted) {
  return tensor == wanted || tensor == wanted + ".chunk";
}

}  // namespace

void validate_dump_names(const ProgramSet& set, const std::vector<std::string>& names) {
  std::set<std::string> known;
  const StepProgram& program = training_program(set);
  for (const Call& call : program.calls) {
    for (const Value& value : program.templates[static_cast<size_t>(call.template_id)].graph.values) {
      known.insert(fill_layer(value.name, call.layer));
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
  std::string suffix;
  if (call.micro_batch >= 0) suffix += fmt::format(".micro_batch.{}", call.micro_batch);
  const auto look = [&](std::span<const TensorView> views, std::span<const std::string> tensor_names) {
    for (size_t i = 0; i < views.size(); ++i) {
      for (const std::string& wanted : names_) {
        if (!views[i].present() || !is_named(tensor_names[i], wanted)) continue;
        std::string where = suffix;
        const bool names_layer = wanted.find(fmt::format(".{}.", call.layer)) != std::string::npos;
        if (call.layer >= 0 && !names_layer) where += fmt::format(".layer.{}", call.layer);
        if (seen.operation->region >= 0) where += fmt::format(".chunk.{}", seen.address.iteration);
        take(wanted, views[i], where);
      }
    }
  };
  look(seen.inputs, seen.input_names);
  look(seen.outputs, seen.output_names);
}

void TensorDump::take(const std::string& name, const TensorView& view, const std::string& suffix) {
  Taken taken{name + suffix, view.dtype, {}, {}};
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
  const auto same = std::find_if(taken_.begin(), taken_.end(), [&](const Taken& other) { return other.name == taken.name; });
  if (same != taken_.end()) {
    *same = std::move(taken);  // the last one: a gradient that was added to
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
