// Where a rank's part of an operation's cut dim begins.
//
// Called when a program is loaded for a rank: the program is the same for all ranks, their coordinates are
// not. Thread safety: pure function.
#pragma once

#include "athanor/ir/graph.h"

namespace athanor {

// The global index of the first element that the rank holds of the dim that the operation's `extent` is the
// whole length of: rows of an embedding table, depth of a product, columns of logits, query heads. At or
// beyond the extent when the rank holds padding only; 0 when nothing is cut.
int64_t first_of_part(const Graph& graph, const Operation& operation, const Mesh& mesh,
                      const Coordinates& coordinates);

}  // namespace athanor
