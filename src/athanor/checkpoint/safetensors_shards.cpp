#include "athanor/checkpoint/safetensors_shards.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "athanor/base/error.h"
#include "athanor/checkpoint/json_text.h"

namespace athanor {
namespace {

constexpr std::string_view single_name = "model.safetensors";
constexpr std::string_view index_name = "model.safetensors.index.json";
constexpr int64_t largest_index = int64_t{64} << 20;
constexpr int64_t largest_count = 99999;  // five digits in a name

[[noreturn]] void refuse_index(const std::string& path, const std::string& reason) {
  throw_user_error(fmt::format("'{}': {}", path, reason),
                   "the index does not fit the files beside it; fetch or write them anew");
}

// File by name of tensor.
std::map<std::string, std::string> read_index(FileEnvironment& files, const std::string& path,
                                              std::optional<int64_t>& total_bytes) {
  const auto json = read_json(files, path, largest_index, "an index of safetensors files");
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object()) {
    refuse_index(path, "it has no weight_map");
  }
  std::map<std::string, std::string> result;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) refuse_index(path, fmt::format("the file of tensor '{}' is no text", name));
    const auto& text = file.get_ref<const std::string&>();
    // A plain name: an index must not reach into other folders.
    if (text.find('/') != std::string::npos || text.find('\\') != std::string::npos ||
        !text.ends_with(".safetensors")) {
      refuse_index(path, fmt::format("tensor '{}' would be in '{}', which is no safetensors file beside it",
                                     name, text.substr(0, 200)));
    }
    result.emplace(name, text);
  }
  if (const auto metadata = json.find("metadata"); metadata != json.end() && metadata->is_object()) {
    const auto total = metadata->find("total_size");
    if (total != metadata->end() && total->is_number_integer() && *total >= 0) {
      total_bytes = total->get<int64_t>();
    }
  }
  return result;
}

}  // namespace

bool SafetensorsShards::exist(FileEnvironment& files, const std::string& folder) {
  return files.exists(join_path(folder, single_name)) || files.exists(join_path(folder, index_name));
}

void SafetensorsShards::add(const SafetensorsFile& file) {
  for (const SafetensorsEntry& entry : file.header().tensors) {
    const auto [known, added] = tensors_.emplace(entry.name, Tensor{&file, &entry});
    if (!added) {
      throw_user_error(fmt::format("tensor '{}' is in '{}' and in '{}'", entry.name,
                                   known->second.file->path(), file.path()),
                       "each tensor belongs into one file");
    }
  }
}

SafetensorsShards SafetensorsShards::open(FileEnvironment& files, const std::string& folder) {
  SafetensorsShards shards;
  const auto open_one = [&](std::string_view name) {
    shards.files_.push_back(
        std::make_unique<const SafetensorsFile>(SafetensorsFile::open(files, join_path(folder, name))));
    shards.add(*shards.files_.back());
  };
  const std::string index_path = join_path(folder, index_name);
  if (files.exists(join_path(folder, single_name))) {
    open_one(single_name);
    if (files.exists(index_path)) {
      shards.notes_.push_back(fmt::format("'{}' is not used: there is a {}", index_path, single_name));
    }
    return shards;
  }
  if (!files.exists(index_path)) {
    throw_user_error(fmt::format("'{}' has neither {} nor {}", folder, single_name, index_name),
                     "weights are read from safetensors files; other kinds (.bin, .pt, .gguf) must be "
                     "converted to them first");
  }
  std::optional<int64_t> total;
  const auto index = read_index(files, index_path, total);
  std::set<std::string> names;
  for (const auto& [tensor, file] : index) names.insert(file);
  for (const std::string& name : names) open_one(name);
  int64_t bytes = 0;
  for (const auto& [name, tensor] : shards.tensors_) {
    bytes += tensor.entry->bytes();
    const auto listed = index.find(name);
    if (listed == index.end()) {
      refuse_index(index_path,
                   fmt::format("it does not list tensor '{}' of '{}'", name, tensor.file->path()));
    }
    if (join_path(folder, listed->second) != tensor.file->path()) {
      refuse_index(index_path, fmt::format("tensor '{}' is in '{}', not in '{}'", name, tensor.file->path(),
                                           listed->second));
    }
  }
  for (const auto& [name, file] : index) {
    if (!shards.tensors_.contains(name)) {
      refuse_index(index_path, fmt::format("tensor '{}' is not in '{}'", name, file));
    }
  }
  if (total && *total != bytes) {
    shards.notes_.push_back(
        fmt::format("'{}' says {} bytes in all, the files hold {}", index_path, *total, bytes));
  }
  return shards;
}

ShardReport write_safetensors_shards(FileEnvironment& files, const std::string& folder,
                                     std::span<const TensorProducer> tensors,
                                     const SafetensorsMetadata& metadata, int64_t max_shard_bytes) {
  ATHANOR_ASSERT(max_shard_bytes > 0);
  std::vector<std::vector<TensorProducer>> shards(1);
  int64_t in_shard = 0, total = 0;
  for (const TensorProducer& tensor : tensors) {
    const int64_t bytes = tensor.bytes();
    if (in_shard > 0 && bytes > max_shard_bytes - in_shard) {
      shards.emplace_back();
      in_shard = 0;
    }
    shards.back().push_back(tensor);
    in_shard += bytes;
    total += bytes;
  }
  const auto count = static_cast<int64_t>(shards.size());
  if (count > largest_count) {
    throw_user_error(fmt::format("the tensors would fill {} files of {} bytes", count, max_shard_bytes),
                     fmt::format("at most {} files can be numbered: allow larger ones", largest_count));
  }
  ShardReport report;
  nlohmann::json weight_map = nlohmann::json::object();
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string name =
        count == 1 ? std::string(single_name) : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count);
    const std::string path = join_path(folder, name);
    report.bytes += stream_safetensors(files, path, shards[i], metadata, RenameMode::keep_existing);
    report.files.push_back(path);
    for (const TensorProducer& tensor : shards[i]) weight_map[tensor.name] = name;
  }
  if (count > 1) {
    const nlohmann::json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
    const std::string text = index.dump(2) + "\n", path = join_path(folder, index_name);
    write_file_atomically(files, path,
                          [&](WritableFile& file) { file.append(std::as_bytes(std::span(text))); },
                          {.rename = RenameMode::keep_existing});
    report.files.push_back(path);
    report.bytes += static_cast<int64_t>(text.size());
  }
  return report;
}

}  // namespace athanor
