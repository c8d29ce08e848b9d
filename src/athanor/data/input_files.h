// Which files a user means by a path, a folder, a pattern or a list, and what kind each is.
//
// Called by whoever opens or prepares data. Errors: user errors that name the path. Thread safety: pure
// functions of the file system.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"

namespace athanor {

enum class InputKind : uint8_t {
  text,
  json_lines,  // .jsonl, .ndjson
  tokens,      // this program's token file
  megatron,    // named by its prefix
  llmc,
  unknown,  // none of these by its first bytes and name
};

struct InputFile {
  std::string path;  // of an indexed dataset, the prefix
  InputKind kind = InputKind::unknown;
  friend bool operator==(const InputFile&, const InputFile&) = default;
};

// The files that `value` means, in this order:
//   a file, or an indexed dataset's PREFIX, PREFIX.bin or PREFIX.idx: itself;
//   a folder: all files of a known kind in it and in folders below, sorted by path byte by byte; hidden ones
//   (a name that begins with a dot) are left out;
//   a pattern with *, ? or [...]: what matches, sorted the same way; * does not match a slash;
//   A,B,...: the files of A, then those of B (unless a file has this very name).
// A file's kind is known by its first bytes, or by its name: .txt, .text, .md; .jsonl, .ndjson. Refuses what
// does not exist, folders without any data and patterns that match nothing.
std::vector<InputFile> find_input_files(FileEnvironment& files, const std::string& value);

// Whether writing to `path` would replace one of `inputs`: the same path, but for detours such as "./".
bool is_one_of(const std::vector<InputFile>& inputs, const std::string& path);

}  // namespace athanor
