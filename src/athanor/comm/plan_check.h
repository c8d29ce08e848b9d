// Proves the plans of all members of a group: they end without waiting for each other for ever, every message
// is read as what it was sent, nothing is overwritten while somebody may still read it, every element of
// every output holds each contribution that belongs there exactly once, in the same order of sums on every
// member, and no partial sum was rounded below the accumulator.
//
// Called by tests and by verifiers of programs. Thread safety: pure functions.
#pragma once

#include <span>
#include <string>

#include "athanor/comm/collective.h"
#include "athanor/comm/plan.h"

namespace athanor {

// `specs` and `plans` by member. Empty if all of it holds, otherwise what does not. `in_place`: input and
// output share storage as CollectiveSpec allows. Time and memory grow with the elements of all members.
std::string find_plan_fault(std::span<const CollectiveSpec> specs, std::span<const Plan> plans,
                            bool in_place);

}  // namespace athanor
