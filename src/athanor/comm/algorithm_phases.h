// The two halves that most collectives are made of, reduce-scatter and all-gather, among any positions of a
// group and over any blocks, by each algorithm.
//
// Called by algorithm.cpp. Thread safety: none (they fill a builder).
#pragma once

#include <vector>

#include "athanor/comm/algorithm.h"
#include "athanor/comm/plan_builder.h"

namespace athanor {

struct Phase {
  std::vector<int> members;    // who stands at each position
  int position = 0;            // where this member stands
  std::vector<Ranges> blocks;  // whose elements are whose, by position
  int64_t piece = 0;           // elements after which the next step may begin
  int size() const { return static_cast<int>(members.size()); }
  int member(int at) const { return members[static_cast<size_t>(at)]; }
  const Ranges& block(int at) const { return blocks[static_cast<size_t>(at)]; }
};

// The reduction of every position's `source` over the own block goes to `sink`. Ring, halving_doubling, or
// direct (for everything else). `source` is called for all blocks, `sink` for the own one.
void reduce_scatter_phase(PlanBuilder& builder, Algorithm algorithm, const Phase& phase, const Locate& source,
                          const Locate& sink);

// Every position's block, which it has in `own`, goes to `result` of all of them.
void all_gather_phase(PlanBuilder& builder, Algorithm algorithm, const Phase& phase, const Locate& own,
                      const Locate& result);

// Both in one: each position sums its own block and hands it to all others. `result` is where `source` is, or
// apart from it.
void direct_all_reduce(PlanBuilder& builder, const Phase& phase, const Locate& source, const Locate& result);

}  // namespace athanor
