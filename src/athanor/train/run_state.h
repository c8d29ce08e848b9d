// What a checkpoint keeps of a run besides tensors, and the two ways between a run and its checkpoints.
//
// Called by the training loop. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "athanor/checkpoint/checkpoint.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/data/data_position.h"
#include "athanor/train/engine.h"

namespace athanor {

struct RunProgress {
  int64_t step = 0;            // steps finished, skipped ones too
  int64_t optimizer_step = 0;  // updates made
  int64_t consumed_samples = 0, consumed_tokens = 0;
  int64_t total_samples = 0;    // that the schedule of the learning rate was laid out for
  int64_t earlier_updates = 0;  // that the optimizer's state had seen when the run began with it
  friend bool operator==(const RunProgress&, const RunProgress&) = default;
};

std::string to_text(const RunProgress& progress);
RunProgress parse_run_progress(const std::string& text);  // user error for a text to_text did not write

struct SavedRun {
  RunProgress progress;
  DataPosition position;
  std::string configuration;    // resolved TOML
  std::string spikes;           // SpikeDetector::to_text
  std::string tokenizer = {};   // tokenizer.json of the data; empty: not known
  std::string loss_scale = {};  // LossScaler::to_text; empty: none was kept
};

// Saves every tensor of the engine's state and the rest in one file; all values are those of the call. A
// state with a value that is not finite is not saved: Error(stop_job) with its name. All ranks of the engine
// call it; rank 0 writes, and its `run` is what is written; the others have an empty report.
SaveReport save_run(CheckpointFolder& folder, Engine& engine, const SavedRun& run, RankMessages& messages);
// Of one rank.
SaveReport save_run(CheckpointFolder& folder, Engine& engine, const SavedRun& run);

// The latest sound checkpoint of a folder that all ranks see. Rank 0 looks for it, reads and checks it; the
// others check its header, and have no notes.
LatestCheckpoint find_latest(CheckpointFolder& folder, FileEnvironment& files, RankMessages& messages);

// Loads what the engine has of the tensors (strictly: any difference of names, shapes, types is a user error
// that lists them, before anything is changed; or a value that is not finite), makes the working copies, and
// returns the rest.
SavedRun load_run(const Checkpoint& checkpoint, Engine& engine);
// Only the rest, to compare configurations before an engine exists.
SavedRun read_run(const Checkpoint& checkpoint);

}  // namespace athanor
