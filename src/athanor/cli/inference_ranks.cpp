#include "athanor/cli/inference_ranks.h"

namespace athanor {

std::optional<InferenceRanks> join_inference(const InferenceArguments& arguments) {
  if (arguments.ranks % arguments.tensor != 0) {
    throw_user_error(fmt::format("--tensor {} does not divide --ranks {}", arguments.tensor, arguments.ranks),
                     "the ranks are groups of so many that share the model");
  }
  RunOptions options;
  Mesh& mesh = options.compile.layout.mesh;
  mesh.sizes[static_cast<size_t>(Axis::shard)] = static_cast<int32_t>(arguments.ranks / arguments.tensor);
  mesh.sizes[static_cast<size_t>(Axis::tensor)] = static_cast<int32_t>(arguments.tensor);
  options.threads = arguments.threads;
  if (starts_ranks(options)) {
    start_ranks(options);
    return std::nullopt;
  }
  InferenceRanks ranks;
  ranks.job = join_ranks(options, [] {});
  ranks.messages = std::make_unique<RankMessages>(ranks.job.communicator.get());
  ranks.layout = options.compile.layout;
  share_cores(options, ranks.job);
  ranks.threads = options.threads;
  return ranks;
}

void InferenceRanks::apply(EngineOptions& options) const {
  options.threads = threads;
  options.compile.layout = layout;
  options.communicator = job.communicator.get();
}

}  // namespace athanor
