#include "athanor/tokenizer/open_tokenizer.h"

#include <fmt/core.h>

#include <utility>

#include "athanor/base/error.h"
#include "athanor/tokenizer/tokenizer_files.h"

namespace athanor {
namespace {

constexpr int64_t largest_file = int64_t{1} << 29;

TokenizerDefinition bytes_definition() {
  TokenizerDefinition definition;
  definition.pattern = SplitPattern::none;
  for (int byte = 0; byte < 256; ++byte) definition.tokens.emplace_back(1, static_cast<char>(byte));
  definition.added_tokens.push_back({.id = 256, .content = "<|endoftext|>"});
  definition.end_of_text = 256;
  return definition;
}

TokenizerRoles roles_beside(FileEnvironment& files, const std::string& path) {
  const std::string config = join_path(parent_directory(path), "tokenizer_config.json");
  if (!files.exists(config)) return {};
  return read_tokenizer_config(read_file(files, config, largest_file), config);
}

MergesText merges_beside(FileEnvironment& files, const std::string& vocabulary_path) {
  constexpr std::string_view ending = "vocab.json";
  const std::string merges_path =
      vocabulary_path.substr(0, vocabulary_path.size() - ending.size()) + "merges.txt";
  if (!files.exists(merges_path)) {
    throw_user_error(fmt::format("there is no {} beside {}", merges_path, vocabulary_path),
                     "a vocab.json without merges.txt says only half");
  }
  return {merges_path, read_file(files, merges_path, largest_file)};
}

TokenizerDefinition read_definition(FileEnvironment& files, const std::string& path) {
  if (path == "bytes") return bytes_definition();
  const std::optional<FileStatus> status = files.status(path);
  if (!status) {
    throw_user_error(
        fmt::format("there is no tokenizer {}", path),
        "give \"bytes\", a tokenizer.json, a vocab.json with merges.txt beside it, or a folder of either");
  }
  if (status->is_directory) {
    for (const char* name : {"tokenizer.json", "vocab.json"}) {
      if (files.exists(join_path(path, name))) return read_definition(files, join_path(path, name));
    }
    throw_user_error(fmt::format("the folder {} has neither a tokenizer.json nor a vocab.json", path),
                     "is it the folder of a model?");
  }
  const std::string json = read_file(files, path, largest_file);
  const TokenizerRoles roles = roles_beside(files, path);
  if (!path.ends_with("vocab.json")) return read_tokenizer_json(json, path, roles);
  return read_vocabulary_json(json, path, [&] { return merges_beside(files, path); }, roles);
}

}  // namespace

std::shared_ptr<const Tokenizer> open_tokenizer(FileEnvironment& files, const std::string& name_or_path) {
  try {
    return std::make_shared<const Tokenizer>(read_definition(files, name_or_path));
  } catch (const Error& error) {
    // What the parts of a file say together is checked without knowing which file.
    if (error.message().find(name_or_path) != std::string::npos || error.kind() != ErrorKind::user) throw;
    throw_user_error(fmt::format("{}: {}", name_or_path, error.message()), error.hint());
  }
}

}  // namespace athanor
