#include "athanor/observe/loss_curve.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "athanor/base/memory_file_environment.h"

namespace athanor {
namespace {

TEST(LossCurve, DrawsAtIntervalsAndAtTheEnd) {
  MemoryFileEnvironment files;
  files.make_directories("/run");
  ManualClock clock;
  LossCurve curve(files, "/run/loss.svg", "run", 30, clock);
  StepReport report;
  report.step = 1;
  report.loss = 3.0;
  curve.history_reader().step(report);
  EXPECT_FALSE(files.exists("/run/loss.svg"));
  report.step = 2;
  curve.step(report);
  EXPECT_FALSE(files.exists("/run/loss.svg"));
  clock.advance_ns(31'000'000'000);
  report.step = 3;
  report.loss.reset();  // no valid tokens: nothing to draw, no crash
  curve.step(report);
  const std::string first = read_file(files, "/run/loss.svg", 1 << 20);
  EXPECT_NE(first.find("step 2"), std::string::npos);
  clock.advance_ns(1'000'000'000);
  curve.validation({.step = 3, .set = "a", .loss = 2.0});
  EXPECT_EQ(read_file(files, "/run/loss.svg", 1 << 20), first);
  curve.finish();
  const std::string last = read_file(files, "/run/loss.svg", 1 << 20);
  EXPECT_NE(last.find("step 3"), std::string::npos);
  files.crash(CrashLoss::everything_not_synced);
  EXPECT_EQ(read_file(files, "/run/loss.svg", 1 << 20), last);
}

}  // namespace
}  // namespace athanor
