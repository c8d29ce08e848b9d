#include "athanor/data/input_files.h"

#include <fnmatch.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "athanor/base/error.h"
#include "athanor/data/llmc_tokens.h"
#include "athanor/data/megatron_dataset.h"
#include "athanor/data/token_file.h"

namespace athanor {
namespace {

constexpr int deepest_folder = 64;  // links may lead in circles

bool ends_with_any(const std::string& path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [&](std::string_view ending) { return path.ends_with(ending); });
}

InputFile classify(FileEnvironment& files, const std::string& path) {
  if (auto prefix = megatron_prefix(files, path)) return {std::move(*prefix), InputKind::megatron};
  const auto file = files.open(path);
  std::array<std::byte, 8> begin{};
  const auto size = std::min(begin.size(), static_cast<size_t>(file->size()));
  file->read_at(0, std::span(begin).first(size));
  const auto bytes = std::span<const std::byte>(begin).first(size);
  if (TokenFile::begins_as_one(bytes)) return {path, InputKind::tokens};
  if (ends_with_any(path, {".jsonl", ".ndjson"})) return {path, InputKind::json_lines};
  if (ends_with_any(path, {".txt", ".text", ".md"})) return {path, InputKind::text};
  if (ends_with_any(path, {".tokens"})) return {path, InputKind::tokens};  // for its reader to refuse
  if (LlmcTokens::begins_as_one(bytes)) return {path, InputKind::llmc};
  return {path, InputKind::unknown};
}

bool is_directory(FileEnvironment& files, const std::string& path) {
  const auto status = files.status(path);
  return status && status->is_directory;
}

void list_folder(FileEnvironment& files, const std::string& folder, int depth,
                 std::vector<std::string>& paths) {
  if (depth > deepest_folder) {
    throw_user_error(fmt::format("the folder '{}' lies {} folders deep", folder, depth),
                     "links that lead in a circle, perhaps");
  }
  for (const std::string& name : files.list(folder)) {
    if (name.starts_with('.')) continue;
    const std::string path = join_path(folder, name);
    if (is_directory(files, path))
      list_folder(files, path, depth + 1, paths);
    else
      paths.push_back(path);
  }
}

std::vector<InputFile> files_of_folder(FileEnvironment& files, const std::string& folder) {
  std::vector<std::string> paths;
  list_folder(files, folder, 0, paths);
  std::sort(paths.begin(), paths.end());
  std::vector<InputFile> inputs;
  for (const std::string& path : paths) {
    InputFile input = classify(files, path);
    if (input.kind == InputKind::unknown) continue;
    // Both files of an indexed dataset name it.
    if (std::find(inputs.begin(), inputs.end(), input) == inputs.end() || input.kind != InputKind::megatron)
      inputs.push_back(std::move(input));
  }
  if (inputs.empty()) {
    throw_user_error(fmt::format("the folder '{}' holds no data ({} files)", folder, paths.size()),
                     "texts end in .txt, .text or .md, JSON lines in .jsonl or .ndjson");
  }
  return inputs;
}

bool is_pattern(const std::string& path) {
  return path.find_first_of("*?[") != std::string::npos;
}

// Paths below `base` that match the components of `pattern` from `at` on.
void match(FileEnvironment& files, const std::string& base, const std::string& pattern, size_t at,
           std::vector<std::string>& paths) {
  const size_t slash = pattern.find('/', at);
  const bool last = slash == std::string::npos;
  const std::string component = pattern.substr(at, last ? std::string::npos : slash - at);
  const auto join = [&](const std::string& name) {
    return base.empty() || base.ends_with('/') ? base + name : base + "/" + name;
  };
  const auto go_on = [&](const std::string& name) {
    const std::string path = join(name);
    if (last) {
      if (files.exists(path)) paths.push_back(path);
    } else if (is_directory(files, path.empty() ? "/" : path)) {
      match(files, path + "/", pattern, slash + 1, paths);
    }
  };
  if (!is_pattern(component)) {
    go_on(component);
    return;
  }
  const std::string folder = base.empty() ? "." : base;
  if (!is_directory(files, folder)) return;
  for (const std::string& name : files.list(folder)) {
    if (fnmatch(component.c_str(), name.c_str(), FNM_PERIOD) == 0) go_on(name);
  }
}

std::vector<InputFile> files_of_pattern(FileEnvironment& files, const std::string& pattern) {
  std::vector<std::string> paths;
  match(files, "", pattern, 0, paths);
  std::sort(paths.begin(), paths.end());
  std::vector<InputFile> inputs;
  for (const std::string& path : paths) {
    if (is_directory(files, path)) continue;
    InputFile input = classify(files, path);
    if (input.kind != InputKind::megatron || std::find(inputs.begin(), inputs.end(), input) == inputs.end())
      inputs.push_back(std::move(input));
  }
  if (inputs.empty()) {
    throw_user_error(fmt::format("no file matches '{}'", pattern), "check the pattern; quote it in a shell");
  }
  return inputs;
}

[[noreturn]] void refuse_missing(FileEnvironment& files, const std::string& path) {
  if (files.exists(path + ".bin")) {
    throw_user_error(fmt::format("'{}.bin' has no index: there is no '{}.idx' beside it", path, path),
                     "a Megatron dataset is both files");
  }
  if (ends_with_any(path, {".txt", ".text", ".md", ".jsonl", ".ndjson", ".tokens", ".bin"}))
    files.open(path);  // throws that it does not exist
  throw_user_error(fmt::format("there is no '{0}', and no '{0}.idx' of a Megatron dataset", path),
                   "check the path; it does not exist");
}

}  // namespace

std::vector<InputFile> find_input_files(FileEnvironment& files, const std::string& value) {
  if (is_directory(files, value)) return files_of_folder(files, value);
  if (files.exists(value) || megatron_prefix(files, value)) return {classify(files, value)};
  if (value.find(',') != std::string::npos) {
    std::vector<InputFile> inputs;
    for (size_t begin = 0; begin <= value.size();) {
      const size_t end = std::min(value.find(',', begin), value.size());
      if (end > begin) {
        auto part = find_input_files(files, value.substr(begin, end - begin));
        inputs.insert(inputs.end(), part.begin(), part.end());
      }
      begin = end + 1;
    }
    if (!inputs.empty()) return inputs;
  }
  if (is_pattern(value)) return files_of_pattern(files, value);
  refuse_missing(files, value);
}

bool is_one_of(const std::vector<InputFile>& inputs, const std::string& path) {
  const auto normal = [](const std::string& name) { return std::filesystem::path(name).lexically_normal(); };
  return std::any_of(inputs.begin(), inputs.end(),
                     [&](const InputFile& input) { return normal(input.path) == normal(path); });
}

}  // namespace athanor
