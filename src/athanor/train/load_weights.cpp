#include "athanor/train/load_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"

namespace athanor {

namespace {

constexpr const char* average_prefix = "average.";

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

}  // namespace

bool has_averages(const WeightReader& source) {
  return std::any_of(source.entries().begin(), source.entries().end(),
                     [](const WeightEntry& entry) { return entry.name.starts_with(average_prefix); });
}

std::optional<BadValue> read_tensor(const WeightReader& source, const WeightEntry& entry,
                                    const NamedTensor& tensor) {
  const auto bad_in = [&](std::span<const std::byte> bytes) -> std::optional<BadValue> {
    const int64_t at = first_non_finite(tensor.dtype, bytes);
    if (at < 0) return std::nullopt;
    return BadValue{at, float_at(tensor.dtype, bytes, at)};
  };
  if (tensor.runs.empty()) return std::nullopt;
  if (tensor.whole()) {
    source.read(entry, tensor.dtype, tensor.bytes);
    return bad_in(tensor.bytes);
  }
  const auto size = static_cast<int64_t>(size_of(tensor.dtype));
  std::vector<std::byte> whole(static_cast<size_t>(tensor.shape.elements() * size));
  source.read(entry, tensor.dtype, whole);
  for (const StoredRun& run : tensor.runs) {
    const auto from = whole.begin() + run.global_first * size;
    std::copy(from, from + run.length * size, tensor.bytes.begin() + run.local_first * size);
  }
  return bad_in(whole);
}

void load_weights(Engine& engine, const WeightReader& source, bool averages) {
  const std::vector<NamedTensor> weights = engine.weights();
  std::vector<const WeightEntry*> entries;
  std::string faults;
  for (const NamedTensor& weight : weights) {
    const std::string name = (averages ? average_prefix : "") + weight.name;
    const WeightEntry* entry = source.find(name);
    entries.push_back(entry);
    if (entry == nullptr) {
      faults += fmt::format("\n  {} is missing", name);
    } else if (entry->shape != sizes_of(weight.shape)) {
      faults += fmt::format("\n  {} is [{}] where {} is needed", name, fmt::join(entry->shape, ","),
                            to_text(weight.shape));
    } else if (!is_convertible(entry->dtype)) {
      faults += fmt::format("\n  {} is {}", name, name_of(entry->dtype));
    }
  }
  if (!faults.empty()) {
    throw_user_error(fmt::format("'{}' does not hold this model:{}", source.path(), faults),
                     "it is of a model of another structure");
  }
  for (size_t i = 0; i < weights.size(); ++i) {
    if (const auto bad = read_tensor(source, *entries[i], weights[i])) {
      throw_user_error(fmt::format("'{}': element {} of {} is no finite number", source.path(), bad->index,
                                   entries[i]->name),
                       "these weights are damaged; take others");
    }
  }
  engine.refresh_working();
}

}  // namespace athanor
