// Generation and evaluation on several ranks: how these commands become a job, and what each rank does.
//
// Called by generate_command.cpp and evaluate_command.cpp. Thread safety: one thread.
#pragma once

#include <memory>
#include <optional>

#include "athanor/cli/commands.h"
#include "athanor/cli/rank_job.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/train/engine.h"

namespace athanor {

// The ranks are groups that have a whole model each, of neighbours that share it.
struct InferenceRanks {
  JobRank job;
  std::unique_ptr<RankMessages> messages;
  LayoutOptions layout;
  int threads = 0;

  int groups() const { return layout.mesh.size(Axis::shard); }
  int ranks_of_group() const { return layout.mesh.size(Axis::tensor); }
  int group() const { return messages->rank() / ranks_of_group(); }  // this rank's
  bool speaks_for_group() const { return messages->rank() % ranks_of_group() == 0; }

  // On standard error, once for all ranks.
  void note(const std::string& text) const;
  // An engine of the whole mesh, which cuts batches and weights.
  void apply(EngineOptions& options) const;
};

// Joins the job, or starts it: then nothing is returned, and all is done. User error for ranks that --tensor
// does not divide.
std::optional<InferenceRanks> join_inference(const InferenceArguments& arguments);

}  // namespace athanor
