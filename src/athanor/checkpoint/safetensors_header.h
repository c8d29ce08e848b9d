// The JSON part of safetensors files: for safetensors.cpp only. The parser's checks are declared in
// safetensors.h. Thread safety: pure functions.
#pragma once

#include <string>
#include <string_view>

#include "athanor/checkpoint/safetensors.h"

namespace athanor {

inline constexpr std::string_view safetensors_metadata_key = "__metadata__";

// The header's JSON, filled up with spaces to a multiple of 8. Text that is not UTF-8 is a user error.
std::string format_safetensors_header(const SafetensorsHeader& header);

// Order of the data; tensors without elements, which share their place, by name.
bool in_data_order(const SafetensorsEntry& a, const SafetensorsEntry& b);

[[noreturn]] void refuse_safetensors(const std::string& path, const std::string& reason);

}  // namespace athanor
