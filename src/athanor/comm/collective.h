// One collective operation of a group of ranks: what it does, on which elements, in which types.
//
// Called by compile and execute, which say what is wanted, and by every transport. Thread safety: values.
//
// Numbers. Each contribution is rounded to the wire type once; sums are made in the accumulator type (fp32
// for fp32 and everything narrower, fp64 for fp64, integers in themselves) in an order that depends on the
// algorithm and the group only, and a partial sum is never rounded below the accumulator; where a result
// travels, it is rounded to the wire type once, for every member alike. So the bits do not depend on the
// transport, on timing or on who reads them, and a narrow wire does not get worse with more ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "athanor/ir/dtype.h"

namespace athanor {

enum class CollectiveKind : uint8_t {
  all_reduce,      // every member: output = reduction over the members' inputs
  all_gather,      // every member: output = the members' inputs one after another
  reduce_scatter,  // member m: output = its block of the reduction of all inputs
  all_to_all,      // input = one block for each member; output = one block from each
  broadcast,       // every member: output = the root's input
  send,            // input goes to `root`, ...
  receive,         // ... which has it in output; the counterpart names the sender as its root
};
inline constexpr int collective_kind_count = 7;

enum class CollectiveReduction : uint8_t { sum, max };  // of max: NaN if any contribution is

enum class Algorithm : uint8_t {
  automatic,         // by size, group and hosts, see choose_algorithm
  one_shot,          // all contributions to everybody, each sums for itself: one message time
  direct,            // every block straight to its owner, every result straight to its readers
  ring,              // blocks travel around the ring: the least bytes on each link, n - 1 message times
  halving_doubling,  // halves exchanged over distances n/2, n/4 ...: log n message times
  double_tree,       // two binary trees, each for half of the elements, pipelined
  hierarchical,      // direct inside each host, then between equal places of the hosts
};
inline constexpr int algorithm_count = 7;

std::string_view name_of(CollectiveKind kind);
std::string_view name_of(CollectiveReduction reduction);
std::string_view name_of(Algorithm algorithm);
bool has_reduction(CollectiveKind kind);
bool has_root(CollectiveKind kind);

// What is fixed when a program is compiled. Counts are elements:
//   all_reduce, broadcast, send, receive   counts = {all of them}
//   all_gather, reduce_scatter             counts[m] = the block of member m
//   all_to_all                             counts[m] = sent to member m, receive_counts[m] = got from it
// Blocks lie one after another without gaps. In place (input and output share storage) is allowed for
// all_reduce and broadcast (the same address), all_gather (the input is the own block of the output) and
// reduce_scatter (the output is the own block of the input).
struct CollectiveSpec {
  CollectiveKind kind = CollectiveKind::all_reduce;
  DType dtype = DType::fp32;  // of input and output
  DType wire = DType::fp32;   // of contributions and results on their way
  CollectiveReduction reduction = CollectiveReduction::sum;
  int root = 0;  // a member's number in the group, not a rank
  std::vector<int64_t> counts, receive_counts;
  Algorithm algorithm = Algorithm::automatic;  // one that the operation does not have counts as automatic
};

using GroupId = int32_t;

struct Collective {
  GroupId group = -1;  // there is no default group
  CollectiveSpec spec{};
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // Where set, the counts are read here when the collective runs; those of `spec` are then upper bounds,
  // which the algorithm is chosen by. All members must find the same numbers (all_to_all: matching ones).
  const int64_t* counts_at = nullptr;
  const int64_t* receive_counts_at = nullptr;
  std::string label{};   // for reports: what it is for
  bool patient = false;  // members may come late for good reasons: CommunicatorOptions::patience_ns
};

// In which type values of `dtype` are summed.
DType accumulator_of(DType dtype);
// fp64, fp32, bf16, fp16, int64, int32: the types that can be reduced.
bool is_reducible(DType dtype);

// Elements of a member's input and output.
int64_t input_count(const CollectiveSpec& spec, int member);
int64_t output_count(const CollectiveSpec& spec, int member);

// Throws a user error if `spec` does not make sense for a group of `members`: counts missing or negative, a
// root that is not a member, a type that cannot be reduced or sent as `wire`.
void check_collective(const CollectiveSpec& spec, int members, int member);

}  // namespace athanor
