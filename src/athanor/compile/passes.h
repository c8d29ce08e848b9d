// The compiler's passes, one per file: functions from graph to graph, called in order by compile.cpp, which
// verifies after each. Internal to `compile`. Thread safety: pure functions.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "athanor/compile/options.h"
#include "athanor/program/program.h"

namespace athanor {

// A segment on its way: the first `forward_count` operations are its forward part, the others its backward.
struct Segment {
  Graph graph;
  int64_t forward_count = 0;
};

// The types that the precision policy gives to each role.
struct PrecisionPolicy {
  DType compute = DType::fp32;   // activations, working weights, products
  DType residual = DType::fp32;  // residual stream and its gradient
  DType wide = DType::fp32;      // master weights, optimizer state, gradients, statistics, logits
};

// autodiff.cpp: appends the backward part. Input gradients (Part::input_gradient) and weight gradients
// (Part::weight_gradient) are operations of their own.
Segment differentiate(Segment segment);

// merge_products.cpp: products of one input with weights that are neighbours in their bucket (query, key,
// value; gate, up) become one product and slices of it, and so do their gradients. After sharding: parts of
// merged weights would be other rows than the merged parts.
Segment merge_products(Segment segment);

// fuse.cpp: activation into its product, residual add into the norm after it, dropout with the add after it.
Segment fuse(Segment segment);

// precision.cpp: gives every value its type and casts product operands that have another.
PrecisionPolicy policy_of(const CompileOptions& options, const Backend& backend,
                          std::vector<std::string>& notes);
Segment assign_precision(Segment segment, const PrecisionPolicy& policy);

// chunk_head.cpp: makes the vocabulary product, cross entropy and both gradients of the product one loop over
// chunks of tokens, so that the logits of all tokens never exist at once and are not computed twice.
Segment chunk_head(Segment segment, int64_t chunk_tokens);

// recompute.cpp: what backward needs of forward is kept or computed again.
Segment recompute(Segment segment, Recompute mode);

// split.cpp: the two parts as graphs of their own. `saved` names the forward values that backward reads.
struct SplitSegment {
  Graph forward, backward;
  std::vector<std::string> saved;
};
SplitSegment split(const Segment& segment);

// plan_template.cpp: gives each value its slot: bases for inputs and outputs, one packed "saved" base, one
// packed "scratch" base, where values and workspaces share bytes when their lives do not overlap.
// `saved` (forward): values to put into "saved". `imported` (backward): the forward template of the same
// segment, whose slots those values have.
Template plan_template(const Graph& graph, const std::vector<std::string>& saved, const Template* imported,
                       const Backend& backend);

// plan_memory.cpp: packs buffers by lifetime. Sets offsets; returns the arena's bytes.
struct Interval {
  int64_t bytes = 0;
  int64_t first = 0, last = 0;  // inclusive
  int64_t offset = -1;          // the result
};
int64_t pack(std::vector<Interval>& intervals);

// Removes operations whose outputs nothing reads and values nothing uses; keeps order and names.
Segment remove_unused(Segment segment);

}  // namespace athanor
