#include "athanor/observe/loss_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include "athanor/observe/format.h"

namespace athanor {

namespace {

constexpr size_t fewest_smoothed = 60;   // shorter runs are shown as they are
constexpr int64_t smoothing_share = 50;  // half a window is this part of the run

std::string count_label(double value) {
  const double magnitude = std::abs(value);
  if (magnitude >= 1e9) return fmt::format("{:g}B", value / 1e9);
  if (magnitude >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (magnitude >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:.0f}", value);
}

// The top of the loss axis: the first hundredth of the run and all but the highest hundredth of the rest. A
// spike above that would press the curve flat; it is cut off and marked instead.
double highest_shown(const std::vector<LossBucket>& buckets) {
  std::vector<double> greatest;
  greatest.reserve(buckets.size());
  for (const auto& bucket : buckets) greatest.push_back(bucket.greatest);
  const auto hundredth = static_cast<ptrdiff_t>(greatest.size() / 100);
  const double start = *std::max_element(greatest.begin(), greatest.begin() + hundredth + 1);
  std::sort(greatest.begin(), greatest.end());
  return std::max(start, *(greatest.end() - 1 - hundredth));
}

std::string subtitle_of(const LossHistory& history, int64_t consumed_tokens) {
  std::string text = fmt::format("step {}", format_exact(history.last_step()));
  if (consumed_tokens > 0) text += fmt::format(", {} tokens", format_count(consumed_tokens));
  return text;
}

}  // namespace

bool is_smoothed(const LossHistory& history) {
  return history.buckets().size() >= fewest_smoothed;
}

std::vector<ChartPoint> train_line(const LossHistory& history) {
  const auto half_width = static_cast<int64_t>(history.buckets().size()) / smoothing_share;
  return smooth(history.buckets(), is_smoothed(history) ? half_width : 0);
}

ChartAxis loss_axis(const std::vector<const LossHistory*>& histories) {
  double low = std::numeric_limits<double>::infinity(), high = -low;
  for (const LossHistory* history : histories) {
    if (!history->buckets().empty()) high = std::max(high, highest_shown(history->buckets()));
    for (const auto& bucket : history->buckets()) low = std::min(low, bucket.least);
    for (const auto& curve : history->validations()) {
      for (const auto& point : curve.points) {
        low = std::min(low, point.loss);
        high = std::max(high, point.loss);
      }
    }
  }
  ChartAxis axis;
  if (low > high) return axis;  // nothing to show
  const double padding = std::max(0.04 * (high - low), 1e-3 * std::max(std::abs(low), 1e-3));
  axis.low = low - padding;
  axis.high = high + padding;
  axis.ticks = round_ticks(axis.low, axis.high, 7, false);
  return axis;
}

ChartAxis step_axis(double last) {
  ChartAxis axis;
  axis.low = 0;
  axis.high = std::max(last, 1.0);
  axis.ticks = round_ticks(axis.low, axis.high, 8, true);
  return axis;
}

std::vector<ChartTick> round_ticks(double low, double high, int count, bool whole) {
  const double rough = (high - low) / std::max(count, 1);
  const double decade = std::pow(10.0, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * decade >= 0.7 * rough) {
      step = factor * decade;
      break;
    }
  }
  if (whole) step = std::max(step, 1.0);
  const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 12);
  std::vector<ChartTick> ticks;
  // Multiples are counted instead of summed, and slack at both ends takes up rounding.
  const double first = std::ceil(low / step - 1e-9), last = std::floor(high / step + 1e-9);
  for (double multiple = first; multiple <= last && ticks.size() < 100; multiple += 1) {
    const double value = multiple * step + 0.0;  // no "-0"
    ticks.push_back({value, whole ? count_label(value) : fmt::format("{:.{}f}", value, decimals)});
  }
  return ticks;
}

std::vector<ChartPoint> smooth(const std::vector<LossBucket>& buckets, int64_t half_width) {
  const auto size = static_cast<int64_t>(buckets.size());
  std::vector<double> sums{0.0};
  std::vector<int64_t> counts{0};
  for (const auto& bucket : buckets) {
    sums.push_back(sums.back() + bucket.sum);
    counts.push_back(counts.back() + bucket.count);
  }
  std::vector<ChartPoint> line;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t left = std::min(i, half_width), right = std::min(left, size - 1 - i);
    const auto begin = static_cast<size_t>(i - left), end = static_cast<size_t>(i + right + 1);
    const auto count = static_cast<double>(counts[end] - counts[begin]);
    line.push_back({buckets[static_cast<size_t>(i)].middle_step(), (sums[end] - sums[begin]) / count});
  }
  return line;
}

LossChart make_loss_chart(const LossHistory& history, const std::string& title, int64_t consumed_tokens) {
  LossChart chart;
  chart.title = printable(title);
  chart.subtitle = subtitle_of(history, consumed_tokens);
  chart.step = step_axis(static_cast<double>(history.last_step()));
  chart.loss = loss_axis({&history});
  const auto& buckets = history.buckets();
  chart.smoothed = is_smoothed(history);
  chart.train.label = "train";
  chart.train.points = train_line(history);
  for (const auto& bucket : buckets) {
    if (bucket.greatest > chart.loss.high) chart.spikes.push_back(bucket.middle_step());
    if (!chart.smoothed) continue;
    chart.band_low.push_back({bucket.middle_step(), bucket.least});
    chart.band_high.push_back({bucket.middle_step(), bucket.greatest});
  }
  if (!chart.train.points.empty()) chart.train.last_value = format_loss(chart.train.points.back().y);
  for (const auto& curve : history.validations()) {
    ChartLine line;
    line.label = printable(curve.set);
    line.last_value = format_loss(curve.points.back().loss);
    for (const auto& point : curve.points)
      line.points.push_back({static_cast<double>(point.step), point.loss});
    chart.lines.push_back(std::move(line));
  }
  if (const auto step = history.last_non_finite_step()) chart.non_finite_step = static_cast<double>(*step);
  return chart;
}

}  // namespace athanor
