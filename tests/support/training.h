// Runs of the training loop over a small text, in a folder of their own.
//
// Called by end-to-end tests. Thread safety: one thread.
#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/train/trainer.h"

namespace athanor {

class TrainingRuns {
 public:
  // Files go through `files`, which outlives this.
  explicit TrainingRuns(FileEnvironment& files = system_files());

  // A tiny model of a family, micro-batches of 2 samples of 16 tokens, 10 steps, one thread; nothing is
  // validated or written at the end but the checkpoint. The peak is taken to be `peak_gflops`.
  RunOptions options(const std::string& name, const std::string& family = "gpt2") const;
  static constexpr double peak_gflops = 100;

  // Trains, or goes on with the run of that name.
  TrainOutcome train(const RunOptions& options);
  TrainOutcome resume(RunOptions options);
  // The same with a thread for each rank of the mesh; `prepare` may change a rank's options and context.
  // Returns what each rank ended with: "" or its error.
  using PrepareRank = std::function<void(int rank, RunOptions& options, TrainContext& context)>;
  std::vector<std::string> train_on_ranks(const RunOptions& options, const PrepareRank& prepare = {});
  // The same with a process for each rank, on the transport between processes of a host; the caller must have
  // no other thread. What the run prints is lost.
  std::vector<std::string> train_on_processes(const RunOptions& options);
  // What the last run printed; on many ranks, what rank 0 printed.
  const std::string& screen() const { return screen_; }
  // What Error a run ends with; its text is "" when it ends well.
  std::string error_of(const RunOptions& options);

  std::string path(const RunOptions& options, const std::string& file) const {
    return options.run_folder() + "/" + file;
  }
  std::string text(const RunOptions& options, const std::string& file);
  // The lines of metrics.jsonl without what depends on the clock.
  std::vector<std::string> metrics(const RunOptions& options);
  // One member of every line, as JSON.
  std::vector<std::string> metric(const RunOptions& options, const std::string& member);
  // Everything in a checkpoint as text or bytes: tensors by name, and ".progress", ".position" ...
  std::map<std::string, std::string> checkpoint(const RunOptions& options, int64_t step);
  std::vector<int64_t> checkpoints(const RunOptions& options);
  std::string checkpoint_path(const RunOptions& options, int64_t step);

  const TemporaryFolder& folder() const { return folder_; }

 private:
  FileEnvironment& files_;
  TemporaryFolder folder_;
  std::string screen_;
};

// Names of what differs between two checkpoints; empty if nothing does.
std::string differences(const std::map<std::string, std::string>& expected,
                        const std::map<std::string, std::string>& actual);

}  // namespace athanor
