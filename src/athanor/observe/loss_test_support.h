// A course of losses for the tests of histories and charts.
//
// Included by `*_test.cpp` of this room only. Thread safety: functions without state.
#pragma once

#include <cstdint>

#include "athanor/observe/loss_history.h"

namespace athanor {

inline double falling(int64_t step) {
  return 1.5 + 4.0 / (1.0 + 0.01 * static_cast<double>(step));
}

// Steps 1 to `steps`, by turns a little below and above `falling`.
inline LossHistory history_of(int64_t steps) {
  LossHistory history;
  for (int64_t step = 1; step <= steps; ++step)
    history.add(step, falling(step) + (step % 2 == 0 ? 0.1 : -0.1));
  return history;
}

}  // namespace athanor
