// Graphs over whole buckets on many ranks: what happens to gradients between the last backward and the
// update, and to weights after it. docs/sharding.md, "Buckets and ZeRO".
//
// Internal to `compile`. Thread safety: pure functions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "athanor/ir/graph.h"
#include "athanor/model/layout.h"

namespace athanor {

// From a rank's contributions to a gradient bucket to its part of their sum over `shard`, added to what it
// has of earlier micro-batches; members whose `gradients` (see gradient_placements) ask for it are summed
// over `tensor` before, in place. `table` is the local one. Input "gradients.NAME", output "reduced.NAME".
Graph scatter_bucket_graph(const BucketTable& table, const std::map<std::string, Placements>& gradients,
                           const Layout& layout, DType dtype);

// The sums over ranks that are still due once a step, in place: of "reduced.NAME" over `context` and
// `replica` when `cut`, else of "gradients.NAME" over all axes. No operations when nothing is due.
Graph sum_bucket_graph(const BucketTable& table, const std::map<std::string, Placements>& gradients,
                       const Layout& layout, bool cut, DType dtype);

// A graph of update_graphs.cpp over the rank's part of the bucket along `shard`.
Graph on_bucket_part(Graph graph, const Layout& layout);

// Input "part.NAME", the rank's part along `shard`; output "working.NAME", the whole.
Graph gather_bucket_graph(const BucketTable& table, const Layout& layout, DType dtype);

// The sum of a device scalar or vector (valid tokens, loss, norms) over axes. Input "NAME.part", output
// "NAME"; the input where no axis of these has more than one rank.
Graph sum_graph(const std::string& name, int64_t length, const std::vector<Axis>& axes, const Layout& layout);

}  // namespace athanor
