// Sums of vectors of one type to one or several places, at the speed of the memory.
//
// Called by reduction.cpp. Thread safety: pure functions. The bits are the same on every instruction set.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace athanor {

// targets[t][i] = ((sources[0][i] + sources[1][i]) + sources[2][i]) ... for i < count and every t. A target
// may be one of the sources, not overlap one otherwise.
template <class T>
struct PlainSum {
  static constexpr size_t most = 16;
  std::array<const T*, most> sources{};
  std::array<T*, most> targets{};
  size_t source_count = 0, target_count = 0;  // at least one of each
  int64_t count = 0;
};

void plain_sum(const PlainSum<float>& sum);
void plain_sum(const PlainSum<double>& sum);

}  // namespace athanor
