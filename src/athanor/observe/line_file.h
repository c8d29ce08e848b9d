// Text files of one record a line, appended to for weeks and mended after a crash.
//
// Called by json_lines. Files may be larger than memory: they are read in pieces. Lines end in '\n', which
// is not part of what callers see. Errors: those of the file environment. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "athanor/base/file_environment.h"

namespace athanor {

// A longer line is not one of ours: it is reported as not `complete`, with its first `max_line_bytes`.
inline constexpr int64_t max_line_bytes = 1 << 20;

// Calls `visit` for each line in order. `complete` is false for a last line without '\n' and for one that
// is too long. A file that does not exist has no lines.
void for_each_line(FileEnvironment& files, const std::string& path,
                   const std::function<void(std::string_view line, bool complete)>& visit);

// Removes every incomplete line and every line that `keep` refuses. The file is replaced atomically, and
// only if something goes. Returns the number of lines removed.
int64_t keep_lines(FileEnvironment& files, const std::string& path,
                   const std::function<bool(std::string_view line)>& keep);

}  // namespace athanor
