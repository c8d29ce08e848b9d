#include "athanor/observe/run_comparison.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/temporary_folder.h"
#include "athanor/observe/json_lines.h"
#include "athanor/observe/svg_chart.h"

namespace athanor {
namespace {

class RunComparisonTest : public testing::Test {
 protected:
  // A run of `steps` steps of 100 tokens and half a second, whose loss falls in a straight line, validated
  // every 10.
  void write_run(const std::string& name, int64_t steps, double first, double fall) {
    system_files().make_directories(folder_.path(name));
    JsonLines lines(system_files(), folder_.path(name), 0);
    lines.validation({.step = 0, .set = "held", .loss = first + 1});
    for (int64_t step = 1; step <= steps; ++step) {
      StepReport report;
      report.step = step;
      report.loss = first - fall * static_cast<double>(step);
      report.consumed_tokens = 100 * step;
      report.step_seconds = 0.5;
      lines.step(report);
      if (step % 10 == 0) lines.validation({.step = step, .set = "held", .loss = *report.loss + 1});
    }
    lines.finish();
  }
  void append(const std::string& path, std::string_view text) {
    const auto file = system_files().create(folder_.path(path), {.mode = CreateMode::append});
    file->append(std::as_bytes(std::span(text)));
    file->close();
  }
  ComparedRun read(const std::string& name, ComparisonAxis axis = ComparisonAxis::step) {
    return read_compared_run(system_files(), folder_.path(name), name, axis);
  }

  TemporaryFolder folder_;
};

using Rows = std::vector<std::vector<std::string>>;

TEST_F(RunComparisonTest, SummaryShowsTotalsAndDifferences) {
  write_run("a", 40, 5, 0.01);
  write_run("b", 20, 4, 0.02);
  const Rows rows = comparison_summary({read("a"), read("b")});
  const Rows expected = {{"", "a", "b"},
                         {"steps", "40", "20"},
                         {"tokens", "4.00k", "2.00k"},
                         {"time in steps", "20.0 s", "10.0 s"},
                         {"tokens per second", "200", "200"},
                         {"train, last", "4.6000", "3.6000 (-1.0000)"},
                         {"train, best", "4.6000", "3.6000 (-1.0000)"},
                         {"held, last", "5.6000", "4.6000 (-1.0000)"},
                         {"held, best", "5.6000", "4.6000 (-1.0000)"},
                         {"held, step of best", "40", "20"}};
  EXPECT_EQ(rows, expected);
}

TEST_F(RunComparisonTest, LossesStandBesideEachOtherAtPlacesThatAllReach) {
  write_run("a", 40, 5, 0.01);
  write_run("b", 20, 4, 0.02);
  const Rows by_step = comparison_at_common_places({read("a"), read("b")}, ComparisonAxis::step, 4);
  const Rows expected = {{"step", "a", "b", "a: held", "b: held"},
                         {"5", "4.9500", "3.9000 (-1.0500)", "5.9500", "4.9000 (-1.0500)"},
                         {"10", "4.9000", "3.8000 (-1.1000)", "5.9000", "4.8000 (-1.1000)"},
                         {"15", "4.8500", "3.7000 (-1.1500)", "5.8500", "4.7000 (-1.1500)"},
                         {"20", "4.8000", "3.6000 (-1.2000)", "5.8000", "4.6000 (-1.2000)"}};
  EXPECT_EQ(by_step, expected);
  // The same places, by other names.
  const Rows by_tokens = comparison_at_common_places(
      {read("a", ComparisonAxis::tokens), read("b", ComparisonAxis::tokens)}, ComparisonAxis::tokens, 2);
  EXPECT_EQ(by_tokens[1],
            (std::vector<std::string>{"1.00k", "4.9000", "3.8000 (-1.1000)", "5.9000", "4.8000 (-1.1000)"}));
  const Rows by_time = comparison_at_common_places(
      {read("a", ComparisonAxis::seconds), read("b", ComparisonAxis::seconds)}, ComparisonAxis::seconds, 2);
  EXPECT_EQ(by_time[1],
            (std::vector<std::string>{"5.00 s", "4.9000", "3.8000 (-1.1000)", "5.9000", "4.8000 (-1.1000)"}));
}

TEST_F(RunComparisonTest, SetsThatARunLacksAreLeftBlank) {
  write_run("a", 20, 5, 0.01);
  write_run("b", 20, 5, 0.01);
  system_files().remove(folder_.path("b") + "/" + validation_file_name);
  const std::vector<ComparedRun> runs = {read("a"), read("b")};
  EXPECT_EQ(comparison_summary(runs).back(), (std::vector<std::string>{"held, step of best", "20", "-"}));
  EXPECT_EQ(comparison_at_common_places(runs, ComparisonAxis::step, 1)[1],
            (std::vector<std::string>{"20", "4.8000", "4.8000 (+0.0000)", "5.8000", "-"}));
}

TEST_F(RunComparisonTest, BestIsTakenOverAllValidations) {
  write_run("a", 1, 5, 0);
  for (int64_t step = 1; step <= 3000; ++step) {
    append("a/validation.jsonl",
           to_json(ValidationReport{.step = step, .set = "held", .loss = step == 1733 ? 1.5 : 3.0}) + "\n");
  }
  const ComparedRun run = read("a");
  ASSERT_EQ(run.validations.size(), 1u);
  EXPECT_EQ(run.validations[0].best.value, 1.5);
  EXPECT_EQ(run.validations[0].best.step, 1733);
  EXPECT_EQ(run.validations[0].last.step, 3000);
}

TEST_F(RunComparisonTest, DamagedLinesAreCountedAndLeftOut) {
  write_run("a", 10, 5, 0.01);
  append("a/metrics.jsonl", "{\"step\":11,\"lo\nrubbish\n");
  StepReport report;
  report.step = 4;  // falls back
  report.loss = 100;
  append("a/metrics.jsonl", to_json(report) + "\n");
  append("a/validation.jsonl", std::string("\0\0\0\n", 4));
  const ComparedRun run = read("a");
  EXPECT_EQ(run.passed_over, 4);
  EXPECT_EQ(run.steps, 10);
  EXPECT_LT(run.history.buckets().back().greatest, 5);
}

TEST_F(RunComparisonTest, RunsWithoutALossAreRefused) {
  system_files().make_directories(folder_.path("empty"));
  const auto message = [&](const std::string& name) {
    try {
      read(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      return error.message();
    }
    return std::string("not refused");
  };
  EXPECT_THAT(message("empty"), testing::HasSubstr("is not there"));
  append("empty/metrics.jsonl", "");
  EXPECT_THAT(message("empty"), testing::HasSubstr("has no step yet"));
  append("empty/metrics.jsonl", "a\nb\nc");
  EXPECT_THAT(message("empty"), testing::HasSubstr("has 3 lines, none of which can be read"));
}

TEST_F(RunComparisonTest, ChartKeepsARunsColourAndNamesTheAxis) {
  write_run("first", 200, 5, 0.01);
  write_run("<second>", 100, 4, 0.01);
  const std::vector<ComparedRun> runs = {read("first", ComparisonAxis::seconds),
                                         read("<second>", ComparisonAxis::seconds)};
  const LossChart chart = make_comparison_chart(runs, ComparisonAxis::seconds);
  ASSERT_EQ(chart.lines.size(), 4u);
  EXPECT_EQ(chart.lines[0].color, chart.lines[1].color);
  EXPECT_NE(chart.lines[0].color, chart.lines[2].color);
  EXPECT_EQ(chart.lines[3].label, "<second>: held");
  EXPECT_EQ(chart.step.high, 100);  // seconds
  EXPECT_EQ(chart.lines[1].points.back().x, 100);
  EXPECT_NEAR(chart.lines[0].points.back().y, 3.0, 0.05);
  const std::string svg = render_svg(chart);
  EXPECT_THAT(svg, testing::HasSubstr(">seconds</text>"));
  EXPECT_THAT(svg, testing::HasSubstr("&lt;second&gt;: held"));
  EXPECT_THAT(svg, testing::HasSubstr("stroke-dasharray"));
}

TEST(AlignColumns, CountsColumnsNotBytes) {
  EXPECT_EQ(align_columns({{"", "é", "b"}, {"name", "10", "200"}, {"é"}}),
            "       é    b\nname  10  200\né\n");
  EXPECT_EQ(align_columns({}), "");
}

}  // namespace
}  // namespace athanor
