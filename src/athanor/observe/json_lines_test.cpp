#include "athanor/observe/json_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/faulty_file_environment.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/observe/line_file.h"

namespace athanor {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();
constexpr int64_t megabyte = 1 << 20;
const std::string folder = "/runs/first";
const std::string metrics_path = folder + "/metrics.jsonl";

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 5.0 / static_cast<double>(step);
  report.gradient_norm = 1.5;
  report.consumed_tokens = 768 * step;
  return report;
}

void put(FileEnvironment& files, const std::string& path, std::string_view text) {
  const auto file = files.create(path, {});
  file->append(std::as_bytes(std::span(text)));
  file->close();
}

std::vector<nlohmann::json> read_lines(FileEnvironment& files, const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::istringstream text(read_file(files, path, 64 * megabyte));
  for (std::string line; std::getline(text, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

std::vector<int64_t> steps_in(FileEnvironment& files, const std::string& path = metrics_path) {
  std::vector<int64_t> steps;
  for (const auto& line : read_lines(files, path)) steps.push_back(line.at("step").get<int64_t>());
  return steps;
}

class JsonLinesTest : public testing::Test {
 protected:
  JsonLinesTest() { files_.make_directories(folder); }
  MemoryFileEnvironment files_;
};

TEST(Json, EveryFieldSurvives) {
  StepReport report;
  report.step = 17;
  report.loss = 2.0 / 3.0;
  report.gradient_norm = 1e-300;
  report.learning_rate = 3e-4;
  report.consumed_samples = 9'007'199'254'740'993;  // not a double
  report.consumed_tokens = 10'251'184'259;
  report.valid_tokens = 765;
  report.loss_scale = 65536;
  report.step_seconds = 0.25;
  report.tokens_per_second = 3072;
  report.mfu = 0.85;
  report.mfu_computed_blocks = 0.8;
  report.seconds_left = 200;
  report.skipped = true;
  report.event = "spike \"x\" \\ \n \xff end";
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_EQ(json.at("step").get<int64_t>(), 17);
  EXPECT_EQ(json.at("loss").get<double>(), 2.0 / 3.0);
  EXPECT_EQ(json.at("gradient_norm").get<double>(), 1e-300);
  EXPECT_EQ(json.at("learning_rate").get<double>(), 3e-4);
  EXPECT_EQ(json.at("consumed_samples").get<int64_t>(), 9'007'199'254'740'993);
  EXPECT_EQ(json.at("consumed_tokens").get<int64_t>(), 10'251'184'259);
  EXPECT_EQ(json.at("valid_tokens").get<int64_t>(), 765);
  EXPECT_EQ(json.at("loss_scale").get<double>(), 65536);
  EXPECT_EQ(json.at("step_seconds").get<double>(), 0.25);
  EXPECT_EQ(json.at("tokens_per_second").get<double>(), 3072);
  EXPECT_EQ(json.at("mfu").get<double>(), 0.85);
  EXPECT_EQ(json.at("mfu_computed_blocks").get<double>(), 0.8);
  EXPECT_EQ(json.at("seconds_left").get<double>(), 200);
  EXPECT_EQ(json.at("skipped").get<bool>(), true);
  EXPECT_EQ(json.at("event").get<std::string>(), "spike \"x\" \\ \xef\xbf\xbd \xef\xbf\xbd end");
}

TEST(Json, UnknownIsNullAndNonFiniteIsText) {
  StepReport report = report_of(1);
  report.loss.reset();
  report.gradient_norm = nan;
  report.loss_scale = infinity;
  report.learning_rate = -infinity;
  const auto json = nlohmann::json::parse(to_json(report));
  EXPECT_TRUE(json.at("loss").is_null());
  EXPECT_TRUE(json.at("mfu").is_null());
  EXPECT_TRUE(json.at("event").is_null());
  EXPECT_EQ(json.at("gradient_norm"), "NaN");
  EXPECT_EQ(json.at("loss_scale"), "Infinity");
  EXPECT_EQ(json.at("learning_rate"), "-Infinity");
}

TEST_F(JsonLinesTest, EachLineIsThereAtOnce) {
  JsonLines sink(files_, folder, 0);
  for (int64_t step = 1; step <= 3; ++step) {
    sink.step(report_of(step));
    EXPECT_EQ(steps_in(files_).size(), static_cast<size_t>(step));
  }
  sink.validation({.step = 3, .set = "held \"out\"", .loss = 1.5, .perplexity = std::exp(1.5), .tokens = 99});
  const auto lines = read_lines(files_, folder + "/validation.jsonl");
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_EQ(lines[0].at("set"), "held \"out\"");
  EXPECT_EQ(lines[0].at("tokens"), 99);
}

TEST_F(JsonLinesTest, FinishedLinesSurviveAPowerFailure) {
  JsonLines sink(files_, folder, 0);
  sink.step(report_of(1));
  sink.finish();
  sink.step(report_of(2));
  files_.crash(CrashLoss::everything_not_synced);
  EXPECT_THAT(steps_in(files_), testing::ElementsAre(1));
}

TEST_F(JsonLinesTest, ResumeCutsOffWhatLiesBeyond) {
  {
    JsonLines sink(files_, folder, 0);
    for (int64_t step = 1; step <= 10; ++step) sink.step(report_of(step));
    for (const int64_t step : {0, 5, 5, 10}) sink.validation({.step = step, .set = "a", .loss = 1.0});
  }
  JsonLines sink(files_, folder, 7);
  EXPECT_THAT(steps_in(files_), testing::ElementsAre(1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(steps_in(files_, folder + "/validation.jsonl"), testing::ElementsAre(0, 5, 5));
  sink.step(report_of(8));
  EXPECT_THAT(steps_in(files_), testing::ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
}

TEST_F(JsonLinesTest, TornAndForeignLinesAreRemoved) {
  const std::string good1 = to_json(report_of(1)) + "\n", good2 = to_json(report_of(2)) + "\n";
  const std::string zeros(100, '\0');
  const std::string cases[] = {
      good1 + good2.substr(0, 20),                // torn by a crash
      good1 + good2.substr(0, good2.size() - 1),  // only the end of the line is missing
      good1 + zeros,                              // blocks never written before the power failed
      zeros + "\n" + good1,
      good1 + "hello\n",
      good1 + "{\"step\":\n",
      good1 + "{\"step\":99999999999999999999}\n",
      good1 + good1,  // twice
      good1 + std::string(3 * megabyte, 'x') + "\n",
      good1 + "{\"step\":1," + zeros + "}\n",
  };
  for (const auto& text : cases) {
    put(files_, metrics_path, text);
    JsonLines sink(files_, folder, 1);
    EXPECT_THAT(steps_in(files_), testing::ElementsAre(1)) << text.substr(0, 300);
    sink.step(report_of(2));
    EXPECT_THAT(steps_in(files_), testing::ElementsAre(1, 2));
  }
}

TEST_F(JsonLinesTest, MendingIsSafeAtEveryOperation) {
  std::string text;
  for (int64_t step = 1; step <= 5; ++step) text += to_json(report_of(step)) + "\n";
  put(files_, metrics_path, text);
  for (int64_t kill = 0;; ++kill) {
    MemoryFileEnvironment files;
    files.make_directories(folder);
    put(files, metrics_path, text);
    FaultyFileEnvironment faulty(files, {.kill_at = kill, .tear = true});
    try {
      JsonLines sink(faulty, folder, 3);
      ASSERT_GT(kill, 3);
      break;
    } catch (const ProcessKilled&) {
    }
    JsonLines sink(files, folder, 3);
    EXPECT_THAT(steps_in(files), testing::ElementsAre(1, 2, 3));
  }
}

TEST_F(JsonLinesTest, FullDiskIsAnErrorAndTheNextRunMendsTheFile) {
  FaultyFileEnvironment full(files_, {.disk_bytes = 500});
  EXPECT_THROW(
      {
        JsonLines sink(full, folder, 0);
        for (int64_t step = 1; step <= 10; ++step) sink.step(report_of(step));
      },
      Error);
  JsonLines sink(files_, folder, 1);
  EXPECT_THAT(steps_in(files_), testing::ElementsAre(1));
}

TEST_F(JsonLinesTest, FilesLargerThanAPieceKeepEveryLine) {
  std::string text;
  int64_t steps = 0;
  while (text.size() < 3 * megabyte) text += to_json(report_of(++steps)) + "\n";
  put(files_, metrics_path, text);
  {
    JsonLines sink(files_, folder, steps);
  }
  EXPECT_EQ(read_file(files_, metrics_path, 64 * megabyte), text);
  {
    JsonLines sink(files_, folder, steps - 1);
  }
  const std::string last = to_json(report_of(steps)) + "\n";
  EXPECT_EQ(read_file(files_, metrics_path, 64 * megabyte), text.substr(0, text.size() - last.size()));
}

class Recorder final : public ReportSink {
 public:
  void step(const StepReport& r) override {
    log += fmt::format("{}:{} ", r.step, r.loss ? fmt::format("{}", *r.loss) : "none");
    tokens = r.consumed_tokens;
  }
  void validation(const ValidationReport& r) override {
    log += fmt::format("{}@{}:{}/{} ", r.set, r.step, r.loss.value_or(-1), r.tokens);
  }
  std::string log;
  int64_t tokens = 0;
};

TEST_F(JsonLinesTest, ReplayGivesBackTheCurve) {
  {
    JsonLines sink(files_, folder, 0);
    sink.validation({.step = 0, .set = "a\"loss\":9", .loss = 4.5, .tokens = 10});
    for (int64_t step = 1; step <= 4; ++step) {
      StepReport report = report_of(step);
      report.consumed_tokens = 4'000'000'000 * step;
      if (step == 2) report.loss = nan;
      if (step == 3) report.loss.reset();
      sink.step(report);
      if (step == 2) sink.validation({.step = 2, .set = "b", .loss = 3.5, .tokens = 20});
    }
  }
  Recorder recorder;
  replay_json_lines(files_, folder, 3, recorder);
  EXPECT_EQ(recorder.log, "a\"loss\":9@0:4.5/10 1:5 2:nan b@2:3.5/20 3:none ");
  EXPECT_EQ(recorder.tokens, 12'000'000'000);
  Recorder nothing;
  replay_json_lines(files_, "/runs/none", 3, nothing);
  EXPECT_EQ(nothing.log, "");
}

}  // namespace
}  // namespace athanor
