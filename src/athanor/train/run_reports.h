// What a run tells while it trains: a report of each step and validation, to the terminal and the sinks in
// the run's folder.
//
// Called by the training loop; on many ranks, rank 0 has sinks and a terminal that shows. Thread safety: one
// thread.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/data/loader.h"
#include "athanor/observe/loss_curve.h"
#include "athanor/observe/report.h"
#include "athanor/observe/terminal.h"
#include "athanor/train/engine.h"
#include "athanor/train/options.h"
#include "athanor/train/peak.h"
#include "athanor/train/run_state.h"

namespace athanor {

// One step as the loop has seen it.
struct StepFacts {
  double learning_rate = 0, loss_scale = 1;
  double seconds = 0;
  std::string event = {};  // see StepReport
};

class RunReports {
 public:
  // `ranks` run the programs; `options` and `programs` outlive this.
  RunReports(const RunOptions& options, const ProgramSet& programs, int ranks);

  // Opens the sinks of the run's folder. What they have of steps behind `step` falls away.
  void open_sinks(FileEnvironment& files, int64_t step);
  // What one rank can do; all of them do so much together. A step that computes faster raises it: it was
  // measured while the machine was busy.
  void set_peak(const MatrixPeak& peak) { peak_gflops_ = peak.gflops * ranks_; }
  // The loop begins behind this step: how long the rest takes is told from here on.
  void begin(int64_t step);

  void step(const RunProgress& progress, const StepResult& result, const StepBatch& batch, StepFacts facts,
            Terminal& terminal);
  void validation(const ValidationReport& report, Terminal& terminal);
  // What comes before the sinks are open is kept for them.
  void message(MessageKind kind, const std::string& text, Terminal& terminal);
  // The run ends with this error, which the caller reports.
  void failed(const std::string& error);
  // Everything reaches its destination.
  void finish() { sinks_.finish(); }
  // The losses as a chart for a terminal; empty without sinks.
  std::string chart() const;

 private:
  double computed_flops(size_t micro_batches);

  const RunOptions& options_;
  const ProgramSet& programs_;
  int ranks_;
  double peak_gflops_ = 0;  // 0: not known
  ReportSinks sinks_;
  std::vector<std::pair<MessageKind, std::string>> early_;  // messages without a sink yet
  LossCurve* curve_ = nullptr;
  std::map<size_t, double> computed_flops_;  // of a step with so many micro-batches
  int64_t begun_ns_ = 0, first_step_ = 0;
};

}  // namespace athanor
