// Which part of an operation's operands a rank has: where it begins, and what lies in it of a bucket.
//
// Called when a program is loaded for a rank (the program is the same for all ranks, their coordinates are
// not), and where a tensor that lies on many ranks is read or written whole (checkpoints).
// Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <vector>

#include "athanor/ir/graph.h"

namespace athanor {

// `length` elements of a rank's storage, from `local_first` on, that are the elements of the whole, row-major
// tensor from `global_first` on.
struct StoredRun {
  int64_t local_first = 0, global_first = 0, length = 0;
  friend bool operator==(const StoredRun&, const StoredRun&) = default;
};

// Which elements of the tensor the rank at `coordinates` stores, and where: ascending by local_first, as few
// runs as possible. Elements of the storage that are in no run are padding.
std::vector<StoredRun> stored_runs(const Shape& shape, const Placements& placements, const Mesh& mesh,
                                   const Coordinates& coordinates);

// The runs of elements [first, first + length) of that storage, counted from `first`.
std::vector<StoredRun> part_of_runs(const std::vector<StoredRun>& runs, int64_t first, int64_t length);

// Elements of a bucket of `length` that each rank of axis `shard` stores when the bucket is cut over it.
int64_t bucket_part_length(int64_t length, const Mesh& mesh);

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
