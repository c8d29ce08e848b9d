// What is printed before a run starts: parameters with their decay and learning rate, memory by class.
//
// Called by the training loop and `athanor show`. Thread safety: pure functions.
#pragma once

#include <string>

#include "athanor/compile/compile.h"
#include "athanor/model/config.h"

namespace athanor {

// One line per kind of parameter (layers folded into "block.*"): shape, role, weight decay, rate factor,
// count.
std::string parameter_table(const ProgramSet& set, const ModelConfig& config);

// Peak bytes by class of the largest program, and their sum.
std::string memory_summary(const ProgramSet& set);

}  // namespace athanor
