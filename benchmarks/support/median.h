// The middle one of what a benchmark has measured.
#pragma once

#include <algorithm>
#include <vector>

namespace athanor {

// 0 when there is nothing.
inline double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

}  // namespace athanor
