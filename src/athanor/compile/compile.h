// From a model to its step programs: calls the passes in order.
//
// Called by train, by `athanor show`, later by simulate. Thread safety: pure functions.
#pragma once

#include <span>

#include "athanor/compile/options.h"
#include "athanor/model/model.h"
#include "athanor/program/program.h"

namespace athanor {

// One program to make: its kind, and the micro-batches (number, samples B, sequence length S) of a step.
struct ProgramRequest {
  ProgramKind kind = ProgramKind::train;
  int32_t micro_batches = 1;
  int64_t micro_batch = 1, sequence_length = 1;
  CacheShape cache = {};  // prefill, decode: the same in all requests of a set
};

// Compiles all programs of a run over one persistent plan; every graph and program is verified. Nothing large
// is allocated: the sizes are known before the run starts. Without a train program the plan has one copy of
// the weights, "working.BUCKET" in the compute type ("part.BUCKET" where ranks keep a part each), and no
// gradients or optimizer state. Numbers in requests are those of a rank. User errors as in
// validate(ModelConfig), and for a mesh that cuts sequences which are to be continued.
ProgramSet compile(const ModelConfig& config, std::span<const ProgramRequest> requests,
                   const CompileOptions& options, const Backend& backend);

// Bytes of the persistent arena plus the largest transient one.
int64_t planned_bytes(const ProgramSet& set);

}  // namespace athanor
