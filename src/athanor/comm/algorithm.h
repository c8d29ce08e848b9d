// Which algorithm a collective uses and the steps it consists of.
//
// Called when a program is compiled or loaded, and at run time where counts are not known before. Thread
// safety: pure functions.
#pragma once

#include <span>

#include "athanor/comm/collective.h"
#include "athanor/comm/plan.h"

namespace athanor {

// What algorithms may know of a group: how many members there are and which of them share a host (numbers,
// any, equal for the same host). Never the transport.
struct GroupShape {
  std::vector<int> hosts;
  int members() const { return static_cast<int>(hosts.size()); }
};

// A group whose members are all on one host, or each on its own.
GroupShape one_host(int members);
GroupShape one_member_per_host(int members);

// The algorithm for `spec`: spec.algorithm where the operation has it (hierarchical: where the hosts have
// equally many members), otherwise by size and hosts. The same on every member.
Algorithm choose_algorithm(const CollectiveSpec& spec, const GroupShape& group);

// The steps of `member`. `spec` must have passed check_collective.
Plan plan_collective(const CollectiveSpec& spec, const GroupShape& group, int member);

// Into how many elements each of `parts` gets of `count`: equal ones but for the last, multiples of `align`.
std::vector<int64_t> equal_parts(int64_t count, int parts, int64_t align);

}  // namespace athanor
