#include "athanor/train/initialise_from.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/train/load_weights.h"

namespace athanor {
namespace {

constexpr std::array<std::string_view, 3> optimizer_prefixes = {"first_moment.", "second_moment.",
                                                                "momentum."};
constexpr std::string_view average_prefix = "average.";

bool is_optimizer_state(std::string_view name) {
  return std::any_of(optimizer_prefixes.begin(), optimizer_prefixes.end(),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

std::vector<int64_t> sizes_of(const Shape& shape) {
  std::vector<int64_t> sizes;
  for (int dim = 0; dim < shape.rank(); ++dim) sizes.push_back(shape[dim]);
  return sizes;
}

// What is wrong, a line each, and after a number of lines only how many more.
class Faults {
 public:
  void add(const std::string& line) {
    if (++count_ <= 10) text_ += "\n  " + line;
  }
  std::string text() const {
    return count_ <= 10 ? text_ : text_ + fmt::format("\n  and {} more", count_ - 10);
  }
  bool any() const { return count_ > 0; }

 private:
  std::string text_;
  int64_t count_ = 0;
};

// The tensors to fill, with what they are filled from.
std::vector<std::pair<NamedTensor, const WeightEntry*>> matched(Engine& engine, const WeightReader& source,
                                                                bool optimizer_state) {
  std::vector<std::pair<NamedTensor, const WeightEntry*>> pairs;
  std::set<std::string> parameters;
  for (const NamedTensor& weight : engine.weights()) parameters.insert(weight.name);
  Faults faults;
  for (const NamedTensor& tensor : engine.state()) {
    const bool parameter = parameters.contains(tensor.name);
    if (!parameter && !optimizer_state) continue;
    const WeightEntry* entry = source.find(tensor.name);
    const std::vector<int64_t> sizes = sizes_of(tensor.shape);
    if (entry == nullptr) {
      const bool may_lack = tensor.name.starts_with(average_prefix);
      if (!may_lack) faults.add(fmt::format("{} is missing there", tensor.name));
    } else if (entry->shape != sizes) {
      faults.add(fmt::format("{} is [{}] there and [{}] here", tensor.name, fmt::join(entry->shape, ","),
                             fmt::join(sizes, ",")));
    } else if (!is_convertible(entry->dtype)) {
      faults.add(fmt::format("{} is {} there", tensor.name, name_of(entry->dtype)));
    } else {
      pairs.emplace_back(tensor, entry);
    }
  }
  for (const WeightEntry& entry : source.entries()) {
    const bool state = is_optimizer_state(entry.name) || entry.name.starts_with(average_prefix);
    if (!state && !parameters.contains(entry.name)) faults.add(fmt::format("{} is there only", entry.name));
  }
  if (faults.any()) {
    throw_user_error(
        fmt::format("train.init_from: '{}' does not fit this model:{}", source.path(), faults.text()),
        "leave model.* out to take the model of those weights, or make it the same; "
        "model.vocabulary is the first size of embedding.token.weight");
  }
  return pairs;
}

}  // namespace

void initialise_from(Engine& engine, const WeightReader& source, bool optimizer_state) {
  std::set<std::string> filled;
  for (const auto& [tensor, entry] : matched(engine, source, optimizer_state)) {
    if (const auto bad = read_tensor(source, *entry, tensor)) {
      throw_user_error(fmt::format("train.init_from: '{}': element {} of {} is {:g}", source.path(),
                                   bad->index, tensor.name, bad->value),
                       "these weights are spoilt; take others");
    }
    filled.insert(tensor.name);
  }
  std::map<std::string, std::span<const std::byte>> weights;
  for (const NamedTensor& weight : engine.weights()) weights.emplace(weight.name, weight.bytes);
  for (const NamedTensor& tensor : engine.state()) {
    if (!tensor.name.starts_with(average_prefix) || filled.contains(tensor.name)) continue;
    const auto& weight = weights.at(tensor.name.substr(average_prefix.size()));
    std::copy(weight.begin(), weight.end(), tensor.bytes.begin());
  }
  engine.refresh_working();
}

}  // namespace athanor
