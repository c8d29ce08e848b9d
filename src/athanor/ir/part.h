// Which part of an operation's operands a rank has: where it begins, and what lies in it of a bucket.
//
// Called when a program is loaded for a rank: the program is the same for all ranks, their coordinates are
// not. Thread safety: pure functions.
#pragma once

#include "athanor/ir/graph.h"

namespace athanor {

// The global index of the first element that the rank holds of the dim that the operation's `extent` is the
// whole length of: rows of an embedding table, depth of a product, columns of logits, query heads. At or
// beyond the extent when the rank holds padding only; 0 when nothing is cut.
int64_t first_of_part(const Graph& graph, const Operation& operation, const Mesh& mesh,
                      const Coordinates& coordinates);

// The member table that an operation over a bucket, or over the rank's part of one, works with. For norms
// only what the rank owns is in it: of members that several ranks of axis `tensor` hold, the first owns them,
// so that sums over all ranks count each element once.
BucketTable table_on_rank(const Graph& graph, const Operation& operation, const Mesh& mesh,
                          const Coordinates& coordinates);

// The members of elements [first, first + length) of a bucket, as one-dimensional runs at their place in that
// part. All members stay, in their order, so that norms by member keep theirs; those elsewhere are empty.
BucketTable table_of_part(const BucketTable& table, int64_t first, int64_t length);

}  // namespace athanor
