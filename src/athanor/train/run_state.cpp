#include "athanor/train/run_state.h"

#include <sstream>

#include "athanor/base/error.h"

namespace athanor {

std::string to_text(const RunProgress& progress) {
  return fmt::format("step {}\noptimizer_step {}\nconsumed_samples {}\nconsumed_tokens {}\n", progress.step,
                     progress.optimizer_step, progress.consumed_samples, progress.consumed_tokens);
}

RunProgress parse_run_progress(const std::string& text) {
  RunProgress progress;
  std::istringstream stream(text);
  std::string word;
  stream >> word >> progress.step >> word >> progress.optimizer_step >> word >> progress.consumed_samples >> word >>
      progress.consumed_tokens;
  if (!stream || to_text(progress) != text) {
    throw_user_error("the checkpoint's progress record cannot be read", "it was written by another version or damaged");
  }
  return progress;
}

namespace {

std::vector<int64_t> sizes(const Shape& shape) {
  std::vector<int64_t> result;
  for (int dim = 0; dim < shape.rank(); ++dim) result.push_back(shape[dim]);
  return result;
}

const std::string& entry(const Checkpoint& checkpoint, const char* name) {
  const auto found = checkpoint.state().find(name);
  if (found == checkpoint.state().end()) {
    throw_user_error(fmt::format("'{}' holds no {}", checkpoint.path(), name), "it is no checkpoint of a training run");
  }
  return found->second;
}

}  // namespace

SaveReport save_run(CheckpointFolder& folder, Engine& engine, const SavedRun& run) {
  std::vector<TensorBytes> tensors;
  for (const NamedTensor& tensor : engine.state()) {
    tensors.push_back({tensor.name, tensor.dtype, sizes(tensor.shape), tensor.bytes});
  }
  return folder.save(run.progress.step, tensors,
                     {{"progress", to_text(run.progress)},
                      {"position", to_text(run.position)},
                      {"configuration", run.configuration},
                      {"spikes", run.spikes}});
}

SavedRun read_run(const Checkpoint& checkpoint) {
  return {parse_run_progress(entry(checkpoint, "progress")), parse_data_position(entry(checkpoint, "position")),
          entry(checkpoint, "configuration"), entry(checkpoint, "spikes")};
}

SavedRun load_run(const Checkpoint& checkpoint, Engine& engine) {
  SavedRun run = read_run(checkpoint);
  std::vector<TensorTarget> targets;
  for (const NamedTensor& tensor : engine.state()) {
    targets.push_back({tensor.name, tensor.dtype, sizes(tensor.shape), tensor.bytes});
  }
  checkpoint.load(targets, LoadMode::strict);
  engine.refresh_working();
  return run;
}

}  // namespace athanor
