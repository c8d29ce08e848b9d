// Which name was meant by one that does not exist.
//
// Called by whatever refuses names. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace athanor {

// Smallest number of insertions, deletions, replacements and swaps of neighbours (no part edited twice)
// that turns one text into the other. Damerau 1964; the optimal string alignment recurrence.
int64_t edit_distance(std::string_view a, std::string_view b);

// The nearest of `names`, or empty if none is near.
std::string nearest_name(const std::string& wrong, const std::vector<std::string>& names);

}  // namespace athanor
