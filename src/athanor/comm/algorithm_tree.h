// All-reduce and broadcast over two binary trees, each of which carries half of the elements in pieces.
//
// Called by algorithm.cpp. Thread safety: none (they fill a builder). Source: Sanders, Speck and Traeff,
// "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009: a member that is inside one
// tree is a leaf of the other, so that every link is used in both directions.
#pragma once

#include <vector>

#include "athanor/comm/plan_builder.h"

namespace athanor {

// Sum of `source` over all members to `result` of all.
void tree_all_reduce(PlanBuilder& builder, const std::vector<int>& members, int position, int64_t count,
                     int64_t piece, const Locate& source, const Locate& result);

// `source` of member `root`, which is none of `members`, to `result` of all members. `position` is negative
// on the root.
void tree_broadcast(PlanBuilder& builder, int root, const std::vector<int>& members, int position,
                    int64_t count, int64_t piece, const Locate& source, const Locate& result);

}  // namespace athanor
