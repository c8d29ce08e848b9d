// The sharding pass: a differentiated segment in global shapes becomes the one that each rank runs.
//
// Called by compile. Thread safety: pure functions.
#pragma once

#include <map>
#include <string>

#include "athanor/compile/passes.h"
#include "athanor/model/layout.h"

namespace athanor {

// Propagates placements through forward and backward, inserts the collectives that turn one placement into
// another, and makes shapes local: storage shapes, equal on all ranks. Inputs and outputs keep their names
// and have the placements of the layout; gradients of parameters come out as they are, with sums over ranks
// still to be made where their placement is partial. Tables hold the local shapes of their members.
// docs/sharding.md says how. Batch and sequence must divide (see sequence_granule).
Segment shard(Segment segment, const Layout& layout);

// What the gradients of a sharded segment's parameters are when backward ends, by the parameter's name: cut
// as the parameter is, and partial where ranks have seen other tokens or other heads. Before merge_products.
std::map<std::string, Placements> gradient_placements(const Graph& sharded);

// A bucket as a rank stores it: members in the shape of their storage, packed anew.
BucketTable local_table(const BucketTable& table, const Layout& layout);

}  // namespace athanor
