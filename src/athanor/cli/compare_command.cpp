#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <set>

#include "athanor/base/error.h"
#include "athanor/cli/commands.h"
#include "athanor/cli/option_docs.h"
#include "athanor/cli/option_files.h"
#include "athanor/cli/option_value.h"
#include "athanor/cli/run_folder.h"
#include "athanor/cli/run_options.h"
#include "athanor/observe/format.h"
#include "athanor/observe/run_comparison.h"
#include "athanor/observe/svg_chart.h"

namespace athanor {
namespace {

constexpr int common_places = 10;
constexpr size_t most_options = 20;  // rows of options that differ
constexpr int widest_value = 40;     // columns

ComparisonAxis axis_of(const std::string& name) {
  const std::vector<std::pair<std::string, ComparisonAxis>> axes = {{"step", ComparisonAxis::step},
                                                                    {"tokens", ComparisonAxis::tokens},
                                                                    {"seconds", ComparisonAxis::seconds}};
  for (const auto& [text, axis] : axes) {
    if (text == name) return axis;
  }
  throw_user_error(fmt::format("--by {}: runs are not compared by that", name),
                   "step, tokens or seconds (of the steps alone, without validation and saving)");
}

std::string last_part(std::string path) {
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  const size_t slash = path.rfind('/');
  return path.substr(slash + 1);
}

// The last parts of the folders; where two are the same, the folders as given.
std::vector<std::string> names_of(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    const std::string name = last_part(folder);
    const auto same = std::count_if(folders.begin(), folders.end(),
                                    [&](const std::string& other) { return last_part(other) == name; });
    names.push_back(printable(same > 1 || name.empty() ? folder : name));
  }
  return names;
}

std::string shortened(const std::string& value) {
  std::string text = printable(value);
  if (display_width(text) <= widest_value) return text;
  return fmt::format("{}...", fit_to_width(text, widest_value - 3));
}

// Rows of the options whose values are not the same in all runs, in the order of the table, without the
// run's name and folder.
std::vector<std::vector<std::string>> differing_options(FileEnvironment& files,
                                                        const std::vector<std::string>& folders,
                                                        const std::vector<std::string>& names) {
  std::vector<std::unique_ptr<RunConfiguration>> runs;
  for (const std::string& folder : folders) {
    runs.push_back(std::make_unique<RunConfiguration>());
    apply_toml(runs.back()->table, configuration_of(files, folder), join_path(folder, configuration_file));
  }
  std::vector<std::vector<std::string>> rows(1, {"option"});
  rows[0].insert(rows[0].end(), names.begin(), names.end());
  size_t left_out = 0;
  std::set<std::string> differing;
  for (const auto& run : runs) {
    for (const OptionDifference& difference : differences(runs[0]->table, run->table)) {
      differing.insert(difference.name);
    }
  }
  for (const OptionRow& row : runs[0]->table.rows()) {
    if (row.name() == "run.name" || row.name() == "run.folder" || !differing.contains(row.name())) continue;
    std::vector<std::string> values{row.name()};
    for (const auto& run : runs) values.push_back(shortened(to_toml(run->table.at(row.name()).value())));
    if (rows.size() > most_options) {
      ++left_out;
    } else {
      rows.push_back(std::move(values));
    }
  }
  if (left_out > 0) rows.push_back({fmt::format("and {} more", left_out)});
  return rows;
}

}  // namespace

void compare_command(const CompareArguments& arguments) {
  FileEnvironment& files = system_files();
  const ComparisonAxis axis = axis_of(arguments.by);
  if (arguments.runs.size() < 2 || arguments.runs.size() > most_compared_runs) {
    throw_user_error(
        fmt::format("compare takes 2 to {} runs, not {}", most_compared_runs, arguments.runs.size()),
        "name their folders");
  }
  for (const std::string& folder : arguments.runs) require_run(files, folder);
  const std::vector<std::string> names = names_of(arguments.runs);
  std::vector<ComparedRun> runs;
  std::string notes;
  for (size_t i = 0; i < arguments.runs.size(); ++i) {
    runs.push_back(read_compared_run(files, arguments.runs[i], names[i], axis));
    if (runs[i].passed_over == 0) continue;
    notes += fmt::format("note: {} of {}, damaged or out of order, left out\n",
                         format_counted(runs[i].passed_over, "line"), names[i]);
  }
  const std::vector<std::vector<std::string>> options = differing_options(files, arguments.runs, names);

  std::string text = align_columns(comparison_summary(runs));
  text += fmt::format("\nLosses at the same {}, training smoothed, others between their points:\n",
                      arguments.by == "tokens" ? "number of tokens"
                      : arguments.by == "step" ? "step"
                                               : "time");
  text += align_columns(comparison_at_common_places(runs, axis, common_places));
  if (options.size() > 1) {
    text += "\nOptions that differ:\n" + align_columns(options);
  } else {
    text += "\nAll options are the same.\n";
  }
  if (!notes.empty()) text += "\n" + notes;
  write_file_atomically(files, arguments.output, render_svg(make_comparison_chart(runs, axis)));
  write_output(fmt::format("{}\nchart: {}\n", text, printable(arguments.output)));
}

}  // namespace athanor
