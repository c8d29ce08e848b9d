#include "athanor/train/run_state.h"

#include <algorithm>
#include <sstream>

#include "athanor/base/error.h"
#include "athanor/checkpoint/rank_tensors.h"
#include "athanor/checkpoint/tensor_conversion.h"

namespace athanor {

std::string to_text(const RunProgress& progress) {
  std::string text =
      fmt::format("step {}\noptimizer_step {}\nconsumed_samples {}\nconsumed_tokens {}\ntotal_samples {}\n",
                  progress.step, progress.optimizer_step, progress.consumed_samples, progress.consumed_tokens,
                  progress.total_samples);
  if (progress.earlier_updates > 0) text += fmt::format("earlier_updates {}\n", progress.earlier_updates);
  return text;
}

RunProgress parse_run_progress(const std::string& text) {
  RunProgress progress;
  std::istringstream stream(text);
  std::string word;
  stream >> word >> progress.step >> word >> progress.optimizer_step >> word >> progress.consumed_samples >>
      word >> progress.consumed_tokens >> word >> progress.total_samples;
  const bool complete = !stream.fail();
  if (stream >> word) stream >> progress.earlier_updates;
  const bool possible = complete && progress.earlier_updates >= 0 && progress.optimizer_step >= 0 &&
                        progress.step >= progress.optimizer_step && progress.consumed_samples >= 0 &&
                        progress.consumed_tokens >= progress.consumed_samples;
  if (to_text(progress) != text || !possible) {
    throw_user_error("the checkpoint's progress record cannot be read",
                     "it was written by another version or damaged");
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
    throw_user_error(fmt::format("'{}' holds no {}", checkpoint.path(), name),
                     "it is no checkpoint of a training run");
  }
  return found->second;
}

}  // namespace

namespace {

// Name and place of the first element of the state that is not finite, or nothing.
std::string non_finite_state(Engine& engine) {
  for (const NamedTensor& tensor : engine.state()) {
    const int64_t at = first_non_finite(tensor.dtype, tensor.bytes);
    if (at < 0) continue;
    const auto run = std::find_if(tensor.runs.begin(), tensor.runs.end(), [at](const StoredRun& each) {
      return at >= each.local_first && at < each.local_first + each.length;
    });
    if (run == tensor.runs.end()) return fmt::format("{} (padding)", tensor.name);
    return fmt::format("{} (element {})", tensor.name, run->global_first + at - run->local_first);
  }
  return {};
}

}  // namespace

SaveReport save_run(CheckpointFolder& folder, Engine& engine, const SavedRun& run, RankMessages& messages) {
  if (const std::string where = non_finite_state(engine); !where.empty()) {
    throw Error(
        ErrorKind::stop_job,
        fmt::format("step {}: the update gave a value that is not finite in {}", run.progress.step, where),
        "this state was not saved; go on from an earlier checkpoint with a lower learning rate");
  }
  std::vector<RankTensor> tensors;
  for (NamedTensor& tensor : engine.state()) {
    tensors.push_back({tensor.name, tensor.dtype, sizes(tensor.shape), tensor.bytes, std::move(tensor.runs)});
  }
  CheckpointState state = {{"progress", to_text(run.progress)},
                           {"position", to_text(run.position)},
                           {"configuration", run.configuration},
                           {"spikes", run.spikes}};
  if (!run.tokenizer.empty()) state["tokenizer"] = run.tokenizer;
  if (!run.loss_scale.empty()) state["loss_scale"] = run.loss_scale;
  return save_on_ranks(folder, messages, run.progress.step, std::move(tensors), state);
}

SaveReport save_run(CheckpointFolder& folder, Engine& engine, const SavedRun& run) {
  RankMessages alone(nullptr);
  return save_run(folder, engine, run, alone);
}

LatestCheckpoint find_latest(CheckpointFolder& folder, FileEnvironment& files, RankMessages& messages) {
  LatestCheckpoint latest;
  std::string path;
  if (messages.is_first()) {
    latest = folder.find_latest();
    if (latest.checkpoint) path = latest.checkpoint->path();
  }
  messages.broadcast(path);
  if (!messages.is_first() && !path.empty())
    latest.checkpoint = Checkpoint::open_checked_elsewhere(files, path);
  return latest;
}

SavedRun read_run(const Checkpoint& checkpoint) {
  SavedRun run{parse_run_progress(entry(checkpoint, "progress")),
               parse_data_position(entry(checkpoint, "position")), entry(checkpoint, "configuration"),
               entry(checkpoint, "spikes")};
  const auto scale = checkpoint.state().find("loss_scale");
  if (scale != checkpoint.state().end()) run.loss_scale = scale->second;
  if (run.progress.step != checkpoint.step() ||
      run.progress.consumed_samples != run.position.consumed_samples) {
    throw_user_error(
        fmt::format("'{}' is of step {}, its progress of step {} after {} samples, its position after {}",
                    checkpoint.path(), checkpoint.step(), run.progress.step, run.progress.consumed_samples,
                    run.position.consumed_samples),
        "it was put together from two checkpoints; take another one");
  }
  return run;
}

SavedRun load_run(const Checkpoint& checkpoint, Engine& engine) {
  SavedRun run = read_run(checkpoint);
  std::vector<TensorTarget> targets;
  for (NamedTensor& tensor : engine.state()) {
    targets.push_back({tensor.name, tensor.dtype, sizes(tensor.shape), tensor.bytes, std::move(tensor.runs)});
  }
  checkpoint.load(targets, LoadMode::strict);
  if (const std::string where = non_finite_state(engine); !where.empty()) {
    throw_user_error(fmt::format("'{}' holds a value that is not finite in {}", checkpoint.path(), where),
                     "move that file away to go on from the checkpoint before it");
  }
  engine.refresh_working();
  return run;
}

}  // namespace athanor
