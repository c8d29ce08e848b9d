#include "athanor/observe/terminal_chart.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "athanor/observe/format.h"

namespace athanor {

namespace {

// One character cell: the dots of the training line in it, and a mark that covers them.
struct Cell {
  uint8_t dots = 0;
  int mark = -1;  // index of a validation set
};

constexpr std::array<std::string_view, 4> unicode_marks = {"●", "◆", "▲", "■"};
constexpr std::array<std::string_view, 4> ascii_marks = {"o", "x", "+", "#"};
constexpr std::array<std::string_view, 4> mark_colors = {"\x1b[33m", "\x1b[35m", "\x1b[32m", "\x1b[31m"};
constexpr std::string_view train_color = "\x1b[36m", no_color = "\x1b[0m";

class CharacterChart {
 public:
  CharacterChart(const LossChart& chart, const TerminalChartOptions& options)
      : chart_(chart),
        options_(options),
        width_(std::max(options.width, 30)),
        height_(std::max(options.height, 8)) {}

  std::string render() {
    if (chart_.empty()) return "no loss reported yet\n";
    rows_ = height_ - 3;  // one line of legend, the step axis and its labels
    const auto loss_ticks = round_ticks(chart_.loss.low, chart_.loss.high, std::max(2, rows_ / 3), false);
    for (const auto& tick : loss_ticks) margin_ = std::max(margin_, display_width(tick.label));
    margin_ = std::min(margin_, width_ / 2) + 1;
    columns_ = width_ - margin_ - 1;
    cells_.assign(static_cast<size_t>(rows_ * columns_), {});
    draw_train();
    draw_validations();

    std::string out = legend();
    std::vector<std::string_view> labels(static_cast<size_t>(rows_));
    for (const auto& tick : loss_ticks) {
      const int row = row_of(chart_.loss.position(tick.value) * dots_high(), dots_y());
      labels[static_cast<size_t>(row)] = tick.label;
    }
    for (int row = 0; row < rows_; ++row) out += plot_row(row, labels[static_cast<size_t>(row)]);
    return out + step_axis();
  }

 private:
  int dots_x() const { return options_.unicode ? 2 : 1; }
  int dots_y() const { return options_.unicode ? 4 : 1; }
  double dots_wide() const { return columns_ * dots_x() - 1; }
  double dots_high() const { return rows_ * dots_y() - 1; }
  Cell& cell(int row, int column) { return cells_[static_cast<size_t>(row * columns_ + column)]; }

  // The row that holds a height in dots above the bottom.
  int row_of(double height, int dots) const {
    const auto dot = static_cast<int>(std::lround(std::clamp(height, 0.0, dots_high())));
    return rows_ - 1 - dot / dots;
  }

  void set_dot(int x, int y) {
    // Bits of the braille block (U+2800): left column 0 1 2 6, right column 3 4 5 7, from the top.
    static constexpr std::array<std::array<uint8_t, 4>, 2> bits = {
        {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}}};
    const int from_top = static_cast<int>(dots_high()) - y;
    Cell& target = cell(from_top / dots_y(), x / dots_x());
    target.dots |=
        options_.unicode ? bits[static_cast<size_t>(x % 2)][static_cast<size_t>(from_top % 4)] : uint8_t{1};
  }

  // The line's height at a step, between its points; outside of them that of the nearest.
  static double height_at(const std::vector<ChartPoint>& points, double step) {
    const auto after =
        std::lower_bound(points.begin(), points.end(), step,
                         [](const ChartPoint& point, double value) { return point.x < value; });
    if (after == points.begin()) return points.front().y;
    if (after == points.end()) return points.back().y;
    const ChartPoint& a = *(after - 1);
    const ChartPoint& b = *after;
    return a.y + (b.y - a.y) * (step - a.x) / (b.x - a.x);
  }

  // Where several points share a column of dots, the column shows their mean; elsewhere the line between its
  // neighbours. Columns are joined by vertical strokes.
  void draw_train() {
    const auto& points = chart_.train.points;
    if (points.empty()) return;
    const auto x_of = [&](double step) {
      return static_cast<int>(std::lround(std::clamp(chart_.step.position(step), 0.0, 1.0) * dots_wide()));
    };
    const int first = x_of(points.front().x), last = x_of(points.back().x);
    std::vector<double> sums(static_cast<size_t>(last + 1));
    std::vector<int> counts(static_cast<size_t>(last + 1));
    for (const auto& point : points) {
      sums[static_cast<size_t>(x_of(point.x))] += point.y;
      ++counts[static_cast<size_t>(x_of(point.x))];
    }
    int previous = -1;
    for (int x = first; x <= last; ++x) {
      const auto at = static_cast<size_t>(x);
      const double step =
          chart_.step.low + (chart_.step.high - chart_.step.low) * x / std::max(dots_wide(), 1.0);
      const double loss = counts[at] > 0 ? sums[at] / counts[at] : height_at(points, step);
      const double share = std::clamp(chart_.loss.position(loss), 0.0, 1.0);
      const int y = static_cast<int>(std::lround(share * dots_high()));
      const int from = previous < 0   ? y
                       : previous < y ? std::min(previous + 1, y)
                                      : std::max(previous - 1, y);
      for (int dot = std::min(from, y); dot <= std::max(from, y); ++dot) set_dot(x, dot);
      previous = y;
    }
  }

  void draw_validations() {
    for (size_t set = 0; set < chart_.lines.size(); ++set) {
      for (const auto& point : chart_.lines[set].points) {
        const double share = std::clamp(chart_.step.position(point.x), 0.0, 1.0);
        const int column = static_cast<int>(std::lround(share * (columns_ - 1)));
        const int row = row_of(chart_.loss.position(point.y) * dots_high(), dots_y());
        cell(row, column).mark = static_cast<int>(set % unicode_marks.size());
      }
    }
  }

  std::string_view mark(size_t set) const {
    return options_.unicode ? unicode_marks[set % unicode_marks.size()]
                            : ascii_marks[set % ascii_marks.size()];
  }

  std::string colored(std::string_view text, std::string_view color) const {
    return options_.color ? fmt::format("{}{}{}", color, text, no_color) : std::string(text);
  }

  std::string plot_row(int row, std::string_view label) {
    std::string line = fmt::format("{:>{}}", fit_to_width(label, margin_ - 1), margin_ - 1);
    if (options_.unicode) {
      line += label.empty() ? " │" : " ┤";
    } else {
      line += label.empty() ? " |" : " +";
    }
    size_t pending = 0;  // blanks, written only if something follows
    for (int column = 0; column < columns_; ++column) {
      const Cell& here = cell(row, column);
      if (here.mark < 0 && here.dots == 0) {
        ++pending;
        continue;
      }
      line.append(pending, ' ');
      pending = 0;
      if (here.mark >= 0) {
        const auto set = static_cast<size_t>(here.mark);
        line += colored(mark(set), mark_colors[set % mark_colors.size()]);
      } else if (options_.unicode) {
        const auto dots = static_cast<unsigned>(here.dots);
        const std::string braille = {'\xe2', static_cast<char>(0xa0 | (dots >> 6)),
                                     static_cast<char>(0x80 | (dots & 0x3f))};
        line += colored(braille, train_color);
      } else {
        line += colored("*", train_color);
      }
    }
    return line + '\n';
  }

  std::string step_axis() const {
    std::string axis(static_cast<size_t>(margin_), ' '), labels = axis + ' ';
    axis += options_.unicode ? "└" : "+";
    const auto ticks = round_ticks(chart_.step.low, chart_.step.high, std::max(2, columns_ / 12), true);
    std::vector<bool> has_tick(static_cast<size_t>(columns_));
    for (const auto& tick : ticks) {
      const auto column = static_cast<int>(std::lround(chart_.step.position(tick.value) * (columns_ - 1)));
      has_tick[static_cast<size_t>(column)] = true;
      const int label_width = display_width(tick.label);
      const int place = std::clamp(margin_ + 1 + column - label_width / 2, 0, width_ - label_width);
      const int used = display_width(labels);
      // The first label may begin anywhere, the next keeps a blank from it.
      if (place < used && labels.find_first_not_of(' ') != std::string::npos) continue;
      labels.resize(static_cast<size_t>(place), ' ');
      labels += tick.label;
      labels += ' ';
    }
    for (const bool tick : has_tick) axis += options_.unicode ? (tick ? "┬" : "─") : (tick ? "+" : "-");
    while (!labels.empty() && labels.back() == ' ') labels.pop_back();
    if (display_width(labels) + 5 <= width_) labels += " step";
    return axis + '\n' + labels + '\n';
  }

  // Entries that do not fit are left out.
  std::string legend() const {
    const auto text_of = [&](const ChartLine& line) {
      return fmt::format("{} {}", options_.unicode ? line.label : printable(line.label, true),
                         line.last_value);
    };
    std::string out(static_cast<size_t>(margin_ + 1), ' ');
    int used = margin_ + 1;
    const auto add = [&](std::string_view sign, std::string_view color, const std::string& text) {
      const int needed = display_width(sign) + 1 + display_width(text) + 3;
      if (used + needed - 3 > width_) return;
      used += needed;
      out += colored(sign, color) + ' ' + text + "   ";
    };
    if (!chart_.train.points.empty()) {
      add(options_.unicode ? "⠤⠤" : "**", train_color, "loss: " + text_of(chart_.train));
    }
    for (size_t set = 0; set < chart_.lines.size(); ++set) {
      add(mark(set), mark_colors[set % mark_colors.size()], text_of(chart_.lines[set]));
    }
    while (!out.empty() && out.back() == ' ') out.pop_back();
    return out + '\n';
  }

  const LossChart& chart_;
  const TerminalChartOptions& options_;
  int width_, height_, rows_ = 0, columns_ = 0, margin_ = 1;
  std::vector<Cell> cells_;
};

}  // namespace

std::string render_terminal_chart(const LossChart& chart, const TerminalChartOptions& options) {
  return CharacterChart(chart, options).render();
}

}  // namespace athanor
