#include "athanor/observe/run_comparison.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/plural.h"
#include "athanor/observe/format.h"
#include "athanor/observe/json_lines.h"

namespace athanor {
namespace {

// Names in the legend of the chart beyond which those of validation sets are left out.
constexpr size_t most_legend_entries = 16;

class Reader final : public ReportSink {
 public:
  Reader(ComparedRun& run, ComparisonAxis axis) : run_(run), axis_(axis) {}

  void step(const StepReport& report) override {
    const bool falls_back = report.step <= run_.steps || report.consumed_tokens < run_.tokens ||
                            !(report.step_seconds >= 0 && report.step_seconds < 1e12);
    if (falls_back) {
      ++run_.passed_over;
      return;
    }
    run_.steps = report.step;
    run_.tokens = report.consumed_tokens;
    run_.seconds += report.step_seconds;
    if (report.loss) run_.history.add(place(), *report.loss);
  }

  void validation(const ValidationReport& report) override {
    if (!report.loss || !std::isfinite(*report.loss)) return;
    run_.history.add_validation(place(), report.set, *report.loss);
    const ComparedLoss loss{*report.loss, report.step};
    auto known =
        std::find_if(run_.validations.begin(), run_.validations.end(),
                     [&](const ComparedValidation& candidate) { return candidate.set == report.set; });
    if (known == run_.validations.end()) {
      if (run_.validations.size() == LossHistory::most_validation_sets) return;
      run_.validations.push_back({report.set, loss, loss});
      return;
    }
    known->last = loss;
    if (loss.value < known->best.value) known->best = loss;
  }

 private:
  int64_t place() const {
    switch (axis_) {
      case ComparisonAxis::step:
        return run_.steps;
      case ComparisonAxis::tokens:
        return run_.tokens;
      case ComparisonAxis::seconds:
        break;
    }
    return std::llround(std::min(run_.seconds, 1e15) * 1e3);
  }

  ComparedRun& run_;
  ComparisonAxis axis_;
};

double unit_of(ComparisonAxis axis) {
  return axis == ComparisonAxis::seconds ? 1e-3 : 1;
}

std::string name_of(ComparisonAxis axis) {
  switch (axis) {
    case ComparisonAxis::step:
      return "step";
    case ComparisonAxis::tokens:
      return "tokens";
    case ComparisonAxis::seconds:
      break;
  }
  return "seconds";
}

std::string place_text(double place, ComparisonAxis axis) {
  switch (axis) {
    case ComparisonAxis::step:
      return format_exact(std::llround(place));
    case ComparisonAxis::tokens:
      return format_count(place);
    case ComparisonAxis::seconds:
      break;
  }
  return format_seconds(place * unit_of(axis));
}

// The line through the points, which rise by x; nothing outside of them.
std::optional<double> value_at(const std::vector<ChartPoint>& points, double x) {
  const auto after = std::lower_bound(points.begin(), points.end(), x,
                                      [](const ChartPoint& point, double at) { return point.x < at; });
  if (after == points.end()) return std::nullopt;
  if (after->x == x) return after->y;
  if (after == points.begin()) return std::nullopt;
  const ChartPoint& before = *(after - 1);
  return before.y + (after->y - before.y) * (x - before.x) / (after->x - before.x);
}

// Holds on to the ends: the middle of a bucket lies inside of what it covers.
std::optional<double> train_at(const std::vector<ChartPoint>& line, double x) {
  if (line.empty()) return std::nullopt;
  return value_at(line, std::clamp(x, line.front().x, line.back().x));
}

std::vector<ChartPoint> validation_line(const LossHistory& history, const std::string& set) {
  std::vector<ChartPoint> line;
  for (const ValidationCurve& curve : history.validations()) {
    if (curve.set != set) continue;
    for (const ValidationPoint& point : curve.points) {
      line.push_back({static_cast<double>(point.step), point.loss});
    }
  }
  return line;
}

// Of all runs, by first appearance.
std::vector<std::string> validation_sets(const std::vector<ComparedRun>& runs) {
  std::vector<std::string> sets;
  for (const ComparedRun& run : runs) {
    for (const ComparedValidation& validation : run.validations) {
      if (std::find(sets.begin(), sets.end(), validation.set) == sets.end()) sets.push_back(validation.set);
    }
  }
  return sets;
}

const ComparedValidation* validation_of(const ComparedRun& run, const std::string& set) {
  for (const ComparedValidation& validation : run.validations) {
    if (validation.set == set) return &validation;
  }
  return nullptr;
}

std::string loss_text(const std::optional<double>& loss, const std::optional<double>& first, bool is_first) {
  if (!loss) return "-";
  if (is_first || !first) return format_loss(*loss);
  return fmt::format("{} ({:+.4f})", format_loss(*loss), *loss - *first);
}

}  // namespace

ComparedRun read_compared_run(FileEnvironment& files, const std::string& folder, const std::string& name,
                              ComparisonAxis axis) {
  ComparedRun run;
  run.name = name;
  Reader reader(run, axis);
  run.passed_over += replay_json_lines(files, folder, std::numeric_limits<int64_t>::max(), reader);
  if (run.history.buckets().empty()) {
    const bool there = files.exists(join_path(folder, metrics_file_name));
    throw_user_error(
        fmt::format("{} has no loss to compare: {} {}", folder, join_path(folder, metrics_file_name),
                    !there                ? "is not there"
                    : run.passed_over > 0 ? fmt::format("has {} line{}, none of which can be read",
                                                        run.passed_over, plural(run.passed_over))
                                          : "has no step yet"),
        "name folders of runs that have made a step");
  }
  return run;
}

std::vector<std::vector<std::string>> comparison_summary(const std::vector<ComparedRun>& runs) {
  std::vector<std::vector<std::string>> rows;
  const auto add = [&](const std::string& name, const auto& cell) {
    std::vector<std::string> row{name};
    for (size_t i = 0; i < runs.size(); ++i) row.push_back(cell(runs[i], i));
    rows.push_back(std::move(row));
  };
  add("", [](const ComparedRun& run, size_t) { return run.name; });
  add("steps", [](const ComparedRun& run, size_t) { return format_exact(run.steps); });
  add("tokens", [](const ComparedRun& run, size_t) { return format_count(run.tokens); });
  add("time in steps", [](const ComparedRun& run, size_t) { return format_seconds(run.seconds); });
  add("tokens per second", [](const ComparedRun& run, size_t) {
    return run.seconds > 0 ? format_count(static_cast<double>(run.tokens) / run.seconds) : std::string("-");
  });

  std::vector<std::optional<double>> last, best;
  for (const ComparedRun& run : runs) {
    const std::vector<ChartPoint> line = train_line(run.history);
    const auto least = std::min_element(line.begin(), line.end(),
                                        [](const ChartPoint& a, const ChartPoint& b) { return a.y < b.y; });
    last.push_back(line.empty() ? std::nullopt : std::optional(line.back().y));
    best.push_back(line.empty() ? std::nullopt : std::optional(least->y));
  }
  add("train, last", [&](const ComparedRun&, size_t i) { return loss_text(last[i], last[0], i == 0); });
  add("train, best", [&](const ComparedRun&, size_t i) { return loss_text(best[i], best[0], i == 0); });
  for (const std::string& set : validation_sets(runs)) {
    const auto value = [&](const ComparedRun& run, ComparedLoss ComparedValidation::* which) {
      const ComparedValidation* validation = validation_of(run, set);
      return validation == nullptr ? std::nullopt : std::optional((validation->*which).value);
    };
    for (const auto& [name, which] :
         {std::pair{"last", &ComparedValidation::last}, std::pair{"best", &ComparedValidation::best}}) {
      add(fmt::format("{}, {}", printable(set), name), [&](const ComparedRun& run, size_t i) {
        return loss_text(value(run, which), value(runs[0], which), i == 0);
      });
    }
    add(fmt::format("{}, step of best", printable(set)), [&](const ComparedRun& run, size_t) {
      const ComparedValidation* validation = validation_of(run, set);
      return validation == nullptr ? "-" : format_exact(validation->best.step);
    });
  }
  const bool non_finite = std::any_of(runs.begin(), runs.end(),
                                      [](const ComparedRun& run) { return run.history.non_finite() > 0; });
  if (non_finite) {
    add("losses not finite",
        [](const ComparedRun& run, size_t) { return format_exact(run.history.non_finite()); });
  }
  return rows;
}

std::vector<std::vector<std::string>> comparison_at_common_places(const std::vector<ComparedRun>& runs,
                                                                  ComparisonAxis axis, int count) {
  int64_t end = std::numeric_limits<int64_t>::max();
  for (const ComparedRun& run : runs) end = std::min(end, run.history.last_step());
  const std::vector<std::string> sets = validation_sets(runs);
  std::vector<std::vector<ChartPoint>> train;
  for (const ComparedRun& run : runs) train.push_back(train_line(run.history));

  std::vector<std::vector<std::string>> rows(1, {name_of(axis)});
  for (const ComparedRun& run : runs) rows[0].push_back(run.name);
  for (const std::string& set : sets) {
    for (const ComparedRun& run : runs) rows[0].push_back(fmt::format("{}: {}", run.name, printable(set)));
  }
  int64_t previous = 0;
  for (int i = 1; i <= count; ++i) {
    const auto place = static_cast<int64_t>(std::llround(static_cast<double>(end) * i / count));
    if (place == previous) continue;
    previous = place;
    const auto x = static_cast<double>(place);
    std::vector<std::string> row{place_text(x, axis)};
    const auto add = [&](const auto& line_of) {
      const std::optional<double> first = line_of(0);
      for (size_t run = 0; run < runs.size(); ++run) row.push_back(loss_text(line_of(run), first, run == 0));
    };
    add([&](size_t run) { return train_at(train[run], x); });
    for (const std::string& set : sets) {
      add([&](size_t run) { return value_at(validation_line(runs[run].history, set), x); });
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

LossChart make_comparison_chart(const std::vector<ComparedRun>& runs, ComparisonAxis axis) {
  LossChart chart;
  chart.subtitle = fmt::format("loss by {}", name_of(axis));
  chart.step_name = name_of(axis);
  std::vector<const LossHistory*> histories;
  int64_t end = 0;
  size_t entries = runs.size();
  for (const ComparedRun& run : runs) {
    chart.title += (chart.title.empty() ? "" : ", ") + printable(run.name);
    histories.push_back(&run.history);
    end = std::max(end, run.history.last_step());
    entries += run.validations.size();
  }
  const double unit = unit_of(axis);
  chart.step = step_axis(static_cast<double>(end) * unit);
  chart.loss = loss_axis(histories);
  for (size_t i = 0; i < runs.size(); ++i) {
    const ComparedRun& run = runs[i];
    const auto add = [&](ChartLine line) {
      for (ChartPoint& point : line.points) point.x *= unit;
      line.color = i;
      chart.lines.push_back(std::move(line));
    };
    ChartLine train;
    train.label = printable(run.name);
    train.points = train_line(run.history);
    train.style = LineStyle::plain;
    if (!train.points.empty()) train.last_value = format_loss(train.points.back().y);
    add(std::move(train));
    for (const ComparedValidation& validation : run.validations) {
      ChartLine line;
      if (entries <= most_legend_entries) {
        line.label = fmt::format("{}: {}", printable(run.name), printable(validation.set));
      }
      line.last_value = format_loss(validation.last.value);
      line.points = validation_line(run.history, validation.set);
      line.style = LineStyle::dashed_dots;
      add(std::move(line));
    }
  }
  return chart;
}

std::string align_columns(const std::vector<std::vector<std::string>>& rows) {
  std::vector<int> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      const std::string padding(static_cast<size_t>(widths[i] - display_width(row[i])), ' ');
      line += i == 0 ? row[i] + padding : "  " + padding + row[i];
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace athanor
