#include "athanor/train/run_reports.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>

#include "athanor/base/clock.h"
#include "athanor/model/model.h"
#include "athanor/observe/json_lines.h"
#include "athanor/observe/run_log.h"
#include "athanor/observe/tensorboard.h"
#include "athanor/observe/terminal_chart.h"

namespace athanor {

RunReports::RunReports(const RunOptions& options, const ProgramSet& programs, int ranks)
    : options_(options), programs_(programs), ranks_(ranks) {}

void RunReports::open_sinks(FileEnvironment& files, int64_t step) {
  const std::string folder = options_.run_folder();
  auto curve = std::make_unique<LossCurve>(files, folder + "/" + loss_curve_file_name, options_.name, 20.0,
                                           monotonic_clock());
  if (step > 0) replay_json_lines(files, folder, step, curve->history_reader());
  sinks_.add(std::make_unique<JsonLines>(files, folder, step));
  sinks_.add(std::make_unique<TensorBoard>(files, folder, step, [] { return seconds_of(wall_clock_ns()); }));
  sinks_.add(std::make_unique<RunLog>(files, folder));
  curve_ = &sinks_.add(std::move(curve));
  for (const auto& [kind, text] : std::exchange(early_, {})) sinks_.message(kind, text);
}

void RunReports::begin(int64_t step) {
  begun_ns_ = monotonic_ns();
  first_step_ = step;
}

void RunReports::step(const RunProgress& progress, const StepResult& result, const StepBatch& batch,
                      StepFacts facts, Terminal& terminal) {
  StepReport report;
  report.step = progress.step;
  report.consumed_samples = progress.consumed_samples;
  report.consumed_tokens = progress.consumed_tokens;
  report.valid_tokens = static_cast<int64_t>(result.valid_tokens);
  if (result.valid_tokens > 0) {
    report.loss = result.loss;
    report.gradient_norm = result.gradient_norm;
  }
  report.event = std::move(facts.event);
  report.learning_rate = facts.learning_rate;
  report.loss_scale = facts.loss_scale;
  report.step_seconds = facts.seconds;
  const auto tokens = static_cast<double>(batch.samples * options_.data.sequence_length);
  report.tokens_per_second = tokens / facts.seconds;
  if (peak_gflops_ > 0) {
    const double computed = computed_flops(batch.micro_batches.size());
    peak_gflops_ = std::max(peak_gflops_, computed / facts.seconds * 1e-9);
    const double peak_flops = peak_gflops_ * 1e9 * facts.seconds;
    report.mfu =
        tokens * literature_flops_per_token(options_.model, options_.data.sequence_length) / peak_flops;
    report.mfu_computed_blocks = std::min(1.0, computed / peak_flops);  // but for rounding
  }
  const double elapsed = seconds_of(monotonic_ns() - begun_ns_);
  report.seconds_left = elapsed / static_cast<double>(progress.step - first_step_) *
                        static_cast<double>(options_.steps - progress.step);
  report.skipped = result.skipped;
  report.skipped_steps = progress.step - progress.optimizer_step;
  sinks_.step(report);
  terminal.step(report);
}

double RunReports::computed_flops(size_t micro_batches) {
  double& flops = computed_flops_[micro_batches];
  for (const StepProgram& program : programs_.programs) {
    if (flops > 0) break;
    if (program.kind == ProgramKind::train && program.micro_batches == static_cast<int32_t>(micro_batches)) {
      flops = cost_of(program).flops * ranks_;
    }
  }
  return flops;
}

void RunReports::validation(const ValidationReport& report, Terminal& terminal) {
  sinks_.validation(report);
  terminal.validation(report);
}

void RunReports::message(MessageKind kind, const std::string& text, Terminal& terminal) {
  terminal.message(kind, text);
  if (curve_ != nullptr)
    sinks_.message(kind, text);
  else
    early_.emplace_back(kind, text);
}

void RunReports::failed(const std::string& error) {
  sinks_.message(MessageKind::error, error);
}

std::string RunReports::chart() const {
  if (curve_ == nullptr) return {};
  return render_terminal_chart(curve_->chart(),
                               {.width = 78, .height = 16, .unicode = terminal_options_for(stdout).unicode});
}

}  // namespace athanor
