#include "athanor/hugging_face/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <set>

#include "athanor/base/error.h"
#include "athanor/checkpoint/tensor_conversion.h"

namespace athanor {
namespace {

constexpr int64_t buffer_bytes = int64_t{4} << 20;

// "a, b, c and 4 more".
std::string listed(const std::vector<std::string>& items) {
  constexpr size_t most = 8;
  const size_t shown = std::min(items.size(), most);
  std::string text =
      fmt::format("{}", fmt::join(items.begin(), items.begin() + static_cast<int64_t>(shown), ", "));
  if (items.size() > shown) text += fmt::format(" and {} more", items.size() - shown);
  return text;
}

std::string shape_text(const std::vector<int64_t>& shape) {
  return fmt::format("[{}]", fmt::join(shape, ","));
}

// Copies `rows` rows of `row_elements` from a stored matrix [inputs, outputs] into columns of `out` [outputs
// of the parameter, inputs], of elements of `size` bytes.
void scatter_rows(std::span<const std::byte> stored, int64_t first_input, int64_t rows, int64_t row_elements,
                  int64_t inputs, size_t size, std::span<std::byte> out) {
  for (int64_t output = 0; output < row_elements; ++output) {
    std::byte* target = out.data() + static_cast<size_t>(output * inputs + first_input) * size;
    const std::byte* source = stored.data() + static_cast<size_t>(output) * size;
    const size_t stride = static_cast<size_t>(row_elements) * size;
    for (int64_t row = 0; row < rows; ++row) {
      std::memcpy(target, source, size);
      target += size;
      source += stride;
    }
  }
}

}  // namespace

HuggingFaceWeights::HuggingFaceWeights(std::string folder, HuggingFaceConfig config, SafetensorsShards shards)
    : folder_(std::move(folder)), config_(std::move(config)), shards_(std::move(shards)) {
  notes_ = config_.notes;
  notes_.insert(notes_.end(), shards_.notes().begin(), shards_.notes().end());
}

HuggingFaceWeights HuggingFaceWeights::open(FileEnvironment& files, const std::string& folder) {
  HuggingFaceConfig config = read_hugging_face_config(files, folder);  // says sooner what the folder is not
  HuggingFaceWeights weights(folder, std::move(config), SafetensorsShards::open(files, folder));
  weights.place();
  std::set<const SafetensorsFile*> checked;
  for (const auto& [name, tensor] : weights.shards_.tensors()) {
    if (tensor.file->has_checksums() && checked.insert(tensor.file).second) tensor.file->verify();
  }
  return weights;
}

void HuggingFaceWeights::place() {
  const std::vector<ExchangedTensor> wanted = exchanged_tensors(config_.model);
  const auto& there = shards_.tensors();
  // The inner model is saved without the prefix.
  const std::string_view prefix = name_prefix(config_.model);
  const bool bare = !there.contains(wanted.front().name) &&
                    there.contains(std::string_view(wanted.front().name).substr(prefix.size()));
  const auto stored_name = [&](std::string_view name) {
    return std::string(bare && name.starts_with(prefix) ? name.substr(prefix.size()) : name);
  };
  std::vector<std::string> missing, misshapen, mistyped, extra;
  std::set<std::string> used;
  for (const ExchangedTensor& tensor : wanted) {
    const std::string name = stored_name(tensor.name);
    const auto found = there.find(name);
    if (found == there.end()) {
      missing.push_back(name);
      continue;
    }
    used.insert(name);
    const SafetensorsEntry& entry = *found->second.entry;
    if (entry.shape != tensor.shape) {
      misshapen.push_back(fmt::format("{} (file {}, config.json {})", name, shape_text(entry.shape),
                                      shape_text(tensor.shape)));
    }
    if (!entry.dtype || !is_convertible(*entry.dtype)) {
      mistyped.push_back(fmt::format("{} ({})", name, entry.dtype_name));
      continue;
    }
    int64_t first = 0;
    for (const ExchangedTensor::Part& part : tensor.parts) {
      sources_[part.name] = {found->second, tensor.transposed, first};
      entries_.push_back({part.name, *entry.dtype, part.shape});
      first += part.shape.front();
    }
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const WeightEntry& a, const WeightEntry& b) { return a.name < b.name; });
  const std::string embedding = stored_name(wanted.front().name);
  for (const auto& [name, tensor] : there) {
    if (used.contains(name) || is_constant_buffer(name)) continue;
    if (name == "lm_head.weight" && config_.model.tied_head && used.contains(embedding)) {
      refuse_contradicting_head(tensor, embedding);
      continue;
    }
    extra.push_back(name);
  }
  std::string faults;
  const auto add = [&](std::string_view what, const std::vector<std::string>& names) {
    if (!names.empty()) faults += fmt::format("\n  {} ({}): {}", what, names.size(), listed(names));
  };
  add("missing", missing);
  add("of another shape", misshapen);
  add("of a type that weights cannot have", mistyped);
  add("not of such a model", extra);
  if (!faults.empty()) {
    throw_user_error(fmt::format("the tensors in '{}' are not those of the {} model in its config.json:{}",
                                 folder_, config_.model_type, faults),
                     "fetch the folder anew, or correct config.json");
  }
}

// Some files store a tied head a second time.
void HuggingFaceWeights::refuse_contradicting_head(const SafetensorsShards::Tensor& head,
                                                   const std::string& embedding) const {
  const SafetensorsShards::Tensor& table = shards_.tensors().at(embedding);
  const bool same = head.entry->dtype_name == table.entry->dtype_name &&
                    head.entry->shape == table.entry->shape &&
                    head.file->checksum(*head.entry) == table.file->checksum(*table.entry);
  if (same) return;
  throw_user_error(fmt::format("'{}': config.json ties the head to the embedding (tie_word_embeddings), but "
                               "lm_head.weight and {} differ",
                               folder_, embedding),
                   "set tie_word_embeddings to false in config.json, or remove lm_head.weight");
}

void HuggingFaceWeights::read(const WeightEntry& entry, DType dtype, std::span<std::byte> out) const {
  const Source& source = sources_.at(entry.name);
  const SafetensorsFile& file = *source.tensor.file;
  const SafetensorsEntry& stored = *source.tensor.entry;
  if (!source.transposed) {
    const int64_t row = entry.shape.size() == 1 ? 1 : entry.elements() / std::max<int64_t>(entry.shape[0], 1);
    return read_converted(file, stored, source.first * row, entry.name, dtype, out);
  }
  // Ours is [outputs, inputs]; there the inputs come first, and the outputs may be some of several
  // parameters.
  const int64_t outputs = entry.shape.at(0), inputs = entry.shape.at(1), width = stored.shape.at(1);
  const size_t size = size_of(dtype);
  const int64_t rows = std::clamp<int64_t>(buffer_bytes / (outputs * static_cast<int64_t>(size)), 1, inputs);
  std::vector<std::byte> buffer(static_cast<size_t>(rows * outputs) * size);
  for (int64_t first = 0; first < inputs; first += rows) {
    const int64_t count = std::min(rows, inputs - first);
    for (int64_t row = 0; row < count; ++row) {
      read_converted(file, stored, (first + row) * width + source.first, entry.name, dtype,
                     std::span(buffer).subspan(static_cast<size_t>(row * outputs) * size,
                                               static_cast<size_t>(outputs) * size));
    }
    scatter_rows(buffer, first, count, outputs, inputs, size, out);
  }
}

}  // namespace athanor
