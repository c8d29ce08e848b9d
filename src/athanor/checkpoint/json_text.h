// JSON files of other programs, read with bounds: for .cpp files only, the library takes seconds to compile.
//
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "athanor/base/file_environment.h"

namespace athanor {

// The value that a text holds. Refuses (user error with `path`) what is not JSON, is nested deeper than 32
// levels or has an object that names anything twice. `kind` says what the file is, for the message.
nlohmann::json parse_json(std::string_view text, const std::string& path, std::string_view kind);

nlohmann::json read_json(FileEnvironment& files, const std::string& path, int64_t max_bytes,
                         std::string_view kind);

}  // namespace athanor
