// How deep JSON text is nested, told before it is parsed: a parser keeps tens of bytes for each level, so
// that a file of nothing but brackets would take many times its size in memory.
//
// Called by readers of JSON that others wrote. Thread safety: a pure function.
#pragma once

#include <string_view>

namespace athanor {

// No file that is meant well is nested this deeply.
inline constexpr int deepest_json = 256;

// Whether objects and lists of `text` lie in more than `levels` of each other. Text that is no JSON may give
// either answer.
bool json_is_deeper_than(std::string_view text, int levels);

}  // namespace athanor
