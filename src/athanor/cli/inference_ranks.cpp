#include "athanor/cli/inference_ranks.h"

#include <fmt/format.h>

#include "athanor/base/error.h"

namespace athanor {

std::optional<InferenceRanks> join_inference(const InferenceArguments& arguments) {
  const int64_t ranks_in_all = arguments.ranks > 0 ? arguments.ranks : arguments.tensor;
  if (ranks_in_all % arguments.tensor != 0) {
    throw_user_error(
        fmt::format("--tensor {} does not divide --ranks {}", arguments.tensor, ranks_in_all),
        fmt::format("groups of {0} ranks share a model each: give --ranks {0} or a multiple of it",
                    arguments.tensor));
  }
  RunOptions options;
  // Who is done waits for those with longer texts. Ranks that are gone are noticed all the same.
  options.communication.timeout_seconds = options.communication.patience_seconds = 1e6;
  Mesh& mesh = options.compile.layout.mesh;
  mesh.sizes[static_cast<size_t>(Axis::shard)] = static_cast<int32_t>(ranks_in_all / arguments.tensor);
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

void InferenceRanks::note(const std::string& text) const {
  if (messages->is_first()) write_message(fmt::format("note: {}\n", text));
}

void InferenceRanks::apply(EngineOptions& options) const {
  options.threads = threads;
  options.compile.layout = layout;
  options.communicator = job.communicator.get();
}

}  // namespace athanor
