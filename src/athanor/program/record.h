// What the executor writes for every operation it ran, and the simulator for every one it predicts.
//
// Thread safety: values.
#pragma once

#include <cstdint>

#include "athanor/program/program.h"

namespace athanor {

struct Record {
  Address address;
  StreamKind stream{};
  OperationKind kind{};
  int64_t step = 0;
  int64_t begin_ns = 0, end_ns = 0;  // monotonic
};

}  // namespace athanor
