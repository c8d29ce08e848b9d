// The ending of a noun behind its number: "1 document", "2 documents".
//
// Called by whoever writes messages. Thread safety: pure function.
#pragma once

#include <cstdint>
#include <string_view>

namespace athanor {

// fmt::format("{} token{}", count, plural(count))
constexpr std::string_view plural(int64_t count) {
  return count == 1 ? "" : "s";
}

}  // namespace athanor
