// The training loop: data, steps, validation, checkpoints, reports, and a clean end whatever asks for it.
//
// Called by `athanor train`. Thread safety: one thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/base/folder_lock.h"
#include "athanor/checkpoint/weight_reader.h"
#include "athanor/comm/communicator.h"
#include "athanor/observe/terminal.h"
#include "athanor/train/options.h"
#include "athanor/train/peak.h"

namespace athanor {

struct TrainOutcome {
  int64_t step = 0;
  std::string stop_reason;  // empty: all steps are done
};

// What a run begins with instead of random weights.
struct InitialWeights {
  std::shared_ptr<const WeightReader> reader;
  int64_t updates = 0;                     // that the optimizer's state there has seen; 0: there is none
  std::optional<uint32_t> tokenizer = {};  // identity of the one they were trained with, where it is known
  std::vector<std::string> notes;          // lines to print
};

// What a run needs from outside. `check_resume` is given the configuration a checkpoint was saved with and
// throws when this run may not go on from it; it returns lines to print. `initial_weights` opens
// train.init_from; it is called only where no checkpoint is resumed from. `lock` takes sole use of the run's
// folder until what it returns is gone, or throws.
struct TrainContext {
  FileEnvironment& files;
  Terminal& terminal;
  std::string configuration;  // resolved TOML of this run
  std::function<std::vector<std::string>(const std::string& saved)> check_resume = {};
  std::function<InitialWeights()> initial_weights = {};
  std::optional<MatrixPeak> peak = {};  // of this machine, if known; otherwise it is measured
  std::function<std::shared_ptr<const FolderLock>(const std::string& folder)> lock = {};
  // This rank's; null: one rank. All ranks call train() with the same options on the same files; rank 0 alone
  // writes, prints and reports.
  Communicator* communicator = nullptr;
  bool signals = true;  // false: somebody else in this process listens to signals
};

// Trains to the end, or until a signal or the wall-time limit stops it after a save. Errors: user errors
// before the first step (options, data, memory, checkpoints); Error(stop_job) when loss or gradient are not
// finite, naming the step and the first such tensor, and when loss spikes stop the run. A refused run leaves
// its folder as it was. An error of one rank ends all with its message.
TrainOutcome train(const RunOptions& options, const TrainContext& context);

}  // namespace athanor
