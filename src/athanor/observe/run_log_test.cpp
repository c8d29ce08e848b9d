#include "athanor/observe/run_log.h"

#include <gtest/gtest.h>

#include <vector>

#include "athanor/base/memory_file_environment.h"
#include "athanor/observe/line_file.h"

namespace athanor {
namespace {

// Without their times.
std::vector<std::string> lines_of(FileEnvironment& files) {
  std::vector<std::string> lines;
  for_each_line(files, "runs/a/logs/run.log", [&](std::string_view line, bool complete) {
    EXPECT_TRUE(complete);
    lines.emplace_back(line.substr(line.find(' ') + 1));
  });
  return lines;
}

TEST(RunLog, HoldsWhatMattersLater) {
  MemoryFileEnvironment files;
  {
    RunLog log(files, "runs/a");
    log.message(MessageKind::note, "run folder: runs/a");
    StepReport report;
    report.step = 1;
    report.loss = 4.0;
    log.step(report);
    report.step = 2;
    report.event = "loss spike";
    log.step(report);
    log.validation({.step = 2, .set = "held out", .loss = 3.5, .tokens = 64});
    log.message(MessageKind::warning, "slow");
    log.message(MessageKind::error, "the disk is gone");
  }
  const std::vector<std::string> lines = lines_of(files);
  ASSERT_EQ(lines.size(), 5U);
  EXPECT_EQ(lines[0], "info run folder: runs/a");
  EXPECT_EQ(lines[1].substr(0, 14), "warning step 2");
  EXPECT_NE(lines[1].find("[loss spike]"), std::string::npos) << lines[1];
  EXPECT_EQ(lines[2].substr(0, 35), "info step 2  held out: loss 3.5000 ");
  EXPECT_EQ(lines[3], "warning slow");
  EXPECT_EQ(lines[4], "error the disk is gone");
}

TEST(RunLog, GoesOnWhereItWas) {
  MemoryFileEnvironment files;
  for (const char* text : {"begun", "resumed"}) RunLog(files, "runs/a").message(MessageKind::note, text);
  EXPECT_EQ(lines_of(files), (std::vector<std::string>{"info begun", "info resumed"}));
}

}  // namespace
}  // namespace athanor
