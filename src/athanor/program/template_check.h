// Checks one template by itself and sums up what it does to the memory it is called with.
//
// Internal to `program`: called by the program verifier, once per template. Thread safety: pure functions.
#pragma once

#include <string>
#include <vector>

#include "athanor/program/program.h"
#include "athanor/program/strided_map.h"

namespace athanor {

// Throws Error(stop_job): a program that is not in order is a bug of the compiler.
[[noreturn]] void throw_program_fault(const std::string& where, const std::string& problem);

enum class AccessKind : uint8_t {
  read,        // bytes that the template did not write itself before
  write,       // overwritten
  accumulate,  // overwritten or added to, as the call says
  update,      // read and overwritten in place
};

// What one operation does to one base, over all iterations of its region; what is written to scratch is
// summed up over all operations. Ranges are relative to the base.
struct Access {
  AccessKind kind{};
  StreamKind stream{};
  int32_t operation = -1;
  int32_t base = -1;
  ValueId value = no_value;  // no_value: scratch
  std::vector<StridedRange> ranges;
};

// Runs the template on labels instead of numbers, all iterations of its regions: each byte knows the value
// that was last written to it. Throws when a slot leaves its base; an operation would read bytes that hold
// another value than the graph says (because storage was given away too early), or writes over its own
// operands where its row does not allow it; workspaces touch operands; a graph output does not live to the
// end; weights or optimizer state are written by anything but an optimizer; streams depend on each other
// within the template without waiting. Reads come first in the result, each value once per stream. What a
// template's collectives do counts as done on its compute stream, which waits for them.
std::vector<Access> check_template(const Template& block);

}  // namespace athanor
