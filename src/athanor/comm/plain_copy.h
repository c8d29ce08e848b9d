// Copies of long vectors that do not pass through the caches of the one who copies.
//
// Called by reduction.cpp. Thread safety: pure function.
#pragma once

#include <cstddef>

namespace athanor {

// Ranges that overlap must be equal. Shorter ones than a few hundred KiB stay in the cache, where what comes
// next finds them.
void plain_copy(std::byte* target, const std::byte* source, size_t bytes);

}  // namespace athanor
