#include "athanor/observe/loss_curve.h"

#include <utility>

#include "athanor/observe/svg_chart.h"

namespace athanor {

LossCurve::LossCurve(FileEnvironment& files, std::string path, std::string title, double interval_seconds,
                     Clock& clock)
    : files_(files),
      path_(std::move(path)),
      title_(std::move(title)),
      interval_seconds_(interval_seconds),
      clock_(clock),
      drawn_at_ns_(clock.now_ns()) {}

void LossCurve::record(const StepReport& report) {
  consumed_tokens_ = report.consumed_tokens;
  if (report.loss) history_.add(report.step, *report.loss);
}

void LossCurve::record(const ValidationReport& report) {
  if (report.loss) history_.add_validation(report.step, report.set, *report.loss);
}

void LossCurve::draw_if_due() {
  const int64_t now = clock_.now_ns();
  if (seconds_of(now - drawn_at_ns_) < interval_seconds_) return;
  drawn_at_ns_ = now;
  finish();
}

void LossCurve::step(const StepReport& report) {
  record(report);
  draw_if_due();
}

void LossCurve::validation(const ValidationReport& report) {
  record(report);
  draw_if_due();
}

void LossCurve::finish() {
  write_file_atomically(files_, path_, render_svg(chart()));
}

}  // namespace athanor
