// Which collectives a program runs, and how much they move: by operation and mesh axis, from the program
// alone.
//
// Called by `athanor show memory` and tests. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "athanor/program/program.h"

namespace athanor {

struct CollectiveCount {
  OperationKind operation{};
  Axis axis{};
  int32_t ranks = 1;          // of the axis
  DType dtype{};              // as it travels
  int64_t count = 0;          // in a step
  double bytes = 0;           // of the larger side of each, as it travels, on one rank, in all
  double sent = 0;            // by one rank, in all: the least that the operation needs
  int64_t largest_bytes = 0;  // of one
};

// In order of axis, then operation. `gradient_wire`: of the program's set.
std::vector<CollectiveCount> collectives_of(const StepProgram& program, DType gradient_wire);
// A table of them; empty when there are none.
std::string collectives_text(const StepProgram& program, DType gradient_wire);

}  // namespace athanor
