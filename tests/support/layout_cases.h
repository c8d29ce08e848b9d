// Layouts to compare with one rank: every pair of choices for the fast tests, all of them for the slow ones.
//
// Called by tests. Thread safety: pure functions, but for expect_same, which reports to the running test.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "support/rank_engines.h"

namespace athanor {

struct LayoutCase {
  int32_t replica = 1, shard = 1, context = 1, tensor = 1;
  int32_t zero_stage = 0;
  bool sequence_parallel = false;
  ContextForm form = ContextForm::ring;
  // What a layout must go together with.
  const char* family = "gpt2";
  OptimizerKind optimizer = OptimizerKind::adamw;
  Recompute recompute = Recompute::none;
  int64_t micro_batches = 2;
  int32_t gather_window = 2;

  int32_t ranks() const { return replica * shard * context * tensor; }
};
std::string to_text(const LayoutCase& layout);
std::string name_of(Precision precision, KernelSet kernels);
inline void PrintTo(const LayoutCase& layout, std::ostream* stream) {
  *stream << to_text(layout);
}

// Layouts of up to 8 ranks in which every two values of every two members stand together at least once.
std::vector<LayoutCase> pairwise_layouts();
// All meshes of up to 8 ranks with all stages and forms that differ there, the other members in turn.
std::vector<LayoutCase> all_layouts();

// A tiny model with every feature: norms, biases or gates, grouped queries, a tied head (gpt2), dropout, a
// window, documents, label smoothing, a z-loss; sizes that nothing divides.
RunPlan plan_of(const LayoutCase& layout, Precision precision, KernelSet kernels = KernelSet::reference);
// The same on one rank.
RunPlan one_rank(RunPlan plan);

// Losses and gradient norms of all steps, the validation, and the weights at the end, relative to the largest
// of their kind. `weights` bounds what an optimizer makes of rounding.
struct Tolerance {
  double loss = 0, norm = 0, weights = 0;
};
// Those that docs/sharding.md states.
Tolerance bounds_of(Precision precision);
void expect_same(const RankRun& expected, const RankRun& actual, const Tolerance& tolerance);
void expect_same_bits(const RankRun& expected, const RankRun& actual);

}  // namespace athanor
