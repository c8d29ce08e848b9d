// Losses of several runs side by side: what their folders say, as a table and as a chart.
//
// Called by the command `compare`. A run of any length is read into bounded memory. Thread safety: values and
// pure functions.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "athanor/base/file_environment.h"
#include "athanor/observe/loss_chart.h"
#include "athanor/observe/loss_history.h"

namespace athanor {

// What the runs are laid along. Seconds are those of the steps: validation, saving and pauses are not
// counted.
enum class ComparisonAxis : uint8_t { step, tokens, seconds };

// As many as the chart has colours for.
inline constexpr size_t most_compared_runs = 8;

struct ComparedLoss {
  double value = 0;
  int64_t step = 0;
};

struct ComparedValidation {
  std::string set;
  ComparedLoss last, best;  // over all points, also those that the history has no room for
};

struct ComparedRun {
  std::string name;
  int64_t steps = 0, tokens = 0;
  double seconds = 0;
  LossHistory history;  // its "steps" are positions on the axis: steps, tokens or milliseconds
  std::vector<ComparedValidation> validations;  // by first appearance
  int64_t passed_over = 0;  // lines that could not be read, or fall back behind earlier ones
};

// Reads metrics.jsonl and validation.jsonl of a run folder. Throws Error (user) if there is no loss in them.
ComparedRun read_compared_run(FileEnvironment& files, const std::string& folder, const std::string& name,
                              ComparisonAxis axis);

// Rows of cells, the first row the heading: totals of each run, its last and best losses (of training: of the
// smoothed line), with the difference from the first run.
std::vector<std::vector<std::string>> comparison_summary(const std::vector<ComparedRun>& runs);

// The losses at places that all runs reach, about `count` of them, between points on the straight line
// through its neighbours; "-" where a validation set has none.
std::vector<std::vector<std::string>> comparison_at_common_places(const std::vector<ComparedRun>& runs,
                                                                  ComparisonAxis axis, int count);

// Training as smoothed lines, validation sets dashed with a dot at each point; a run keeps its colour.
LossChart make_comparison_chart(const std::vector<ComparedRun>& runs, ComparisonAxis axis);

// The cells in columns two blanks apart, the first to the left and the others to the right.
std::string align_columns(const std::vector<std::vector<std::string>>& rows);

}  // namespace athanor
