// What a chart of the loss shows, without how it is drawn: lines, ranges, ticks, legend.
//
// Made from a LossHistory; drawn by svg_chart and terminal_chart, so that both show the same.
// Thread safety: values and pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "athanor/observe/loss_history.h"

namespace athanor {

struct ChartPoint {
  double x = 0, y = 0;
};

struct ChartTick {
  double value = 0;
  std::string label;
};

struct ChartAxis {
  double low = 0, high = 1;
  std::vector<ChartTick> ticks;  // inside the range, rising

  // 0 at low, 1 at high.
  double position(double value) const { return (value - low) / (high - low); }
};

enum class LineStyle : uint8_t {
  dots,         // with a dot at each point, as long as they can be told apart
  plain,        // the line alone
  dashed_dots,  // as dots, the line dashed
};

struct ChartLine {
  std::string label;       // printable; empty: not in the legend
  std::string last_value;  // for the legend
  std::vector<ChartPoint> points;
  LineStyle style = LineStyle::dots;
  std::optional<size_t> color;  // number in the palette; none: by its place among the lines
};

struct LossChart {
  std::string title, subtitle;
  ChartAxis step, loss;
  std::string step_name = "step";               // what is along the step axis
  ChartLine train;                              // smoothed if the run is long enough
  bool smoothed = false;                        // then these two say what the line was made from
  std::vector<ChartPoint> band_low, band_high;  // least and greatest loss; equal where a bucket is one step
  std::vector<ChartLine> lines;                 // of the validation sets, or of the runs of a comparison
  std::vector<double> spikes;                   // steps whose loss lies above the range
  std::optional<double> non_finite_step;        // the last one

  bool empty() const { return train.points.empty() && lines.empty(); }
};

// `consumed_tokens` 0: not known.
LossChart make_loss_chart(const LossHistory& history, const std::string& title, int64_t consumed_tokens);

// The line of training as a chart of its own shows it: smoothed if the run is long enough.
bool is_smoothed(const LossHistory& history);
std::vector<ChartPoint> train_line(const LossHistory& history);

// The range of the losses of one or several runs, without their highest spikes.
ChartAxis loss_axis(const std::vector<const LossHistory*>& histories);
// From 0 to `last`.
ChartAxis step_axis(double last);

// Round values (1, 2 or 5 times a power of ten apart), at most about `count`, that lie in [low, high].
// `whole`: integers only, labelled as counts of steps. Needs low < high, both finite.
std::vector<ChartTick> round_ticks(double low, double high, int count, bool whole);

// Mean over a window around each point: half as wide as `half_width` says, narrower at the start, where the
// loss falls steeply, so that it stays centred. Each bucket weighs as many steps as it holds.
std::vector<ChartPoint> smooth(const std::vector<LossBucket>& buckets, int64_t half_width);

}  // namespace athanor
