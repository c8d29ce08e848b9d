// Logical names inside of merged tensors: products that share an input run as one, over weights that are
// neighbours in their bucket.
//
// Called by dumps and by the search for values that are not finite. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor {

struct TensorPart {
  std::string name;   // logical, "{layer}" not filled in
  int64_t first = 0;  // element of the tensor it begins at
  Shape shape;
};

// The parameters (or their gradients, "d.NAME") that a value "a+b+c" holds one after another; a value that
// holds nothing but itself is its only part.
std::vector<TensorPart> parts_of(const Graph& graph, const Value& value);

}  // namespace athanor
