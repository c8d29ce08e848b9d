// Which rank of a mesh this is, and how it reaches the others.
//
// Used by execute. Thread safety: a value.
#pragma once

#include "athanor/comm/communicator.h"
#include "athanor/ir/placement.h"

namespace athanor {

struct RankContext {
  Communicator* communicator = nullptr;  // null: there are no others
  const Mesh* mesh = nullptr;
  Coordinates coordinates{};
  DType gradient_wire = DType::fp32;  // of contributions to gradients on their way
};

}  // namespace athanor
