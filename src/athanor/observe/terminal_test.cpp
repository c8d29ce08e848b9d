#include "athanor/observe/terminal.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "athanor/observe/format.h"

namespace athanor {
namespace {

StepReport report_of(int64_t step) {
  StepReport report;
  report.step = step;
  report.loss = 3.21454;
  report.gradient_norm = 1.2;
  report.learning_rate = 3e-4;
  report.tokens_per_second = 1234;
  report.mfu = 0.853;
  report.seconds_left = 200;
  return report;
}

// What a terminal shows after the bytes: lines, with \r, \n and "erase to the end" honoured.
std::vector<std::string> screen_of(std::string_view bytes) {
  std::vector<std::string> lines(1);
  size_t column = 0;
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (bytes.substr(i).starts_with("\x1b[K")) {
      lines.back().resize(column);
      i += 2;
    } else if (bytes[i] == '\r') {
      column = 0;
    } else if (bytes[i] == '\n') {
      lines.emplace_back();
      column = 0;
    } else {
      lines.back().resize(std::max(lines.back().size(), column + 1));
      lines.back()[column++] = bytes[i];
    }
  }
  return lines;
}

class TerminalTest : public testing::Test {
 protected:
  Terminal make(TerminalOptions options) {
    return {options, [this](std::string_view bytes) { written_ += bytes; }, [this] { return columns_; },
            clock_};
  }
  std::string written_;
  int columns_ = 81;
  ManualClock clock_;
};

TEST(LiveLine, ShowsEverythingWhereThereIsRoom) {
  const TerminalOptions options{.total_steps = 2000};
  EXPECT_EQ(
      live_line(report_of(1000), options, 140),
      "step 1000/2000 ==============>...............  50%  loss 3.2145  gradient norm 1.20  rate 3.00e-04  "
      "1.23k tok/s  MFU 85.3%  3m 20s left");
  EXPECT_EQ(live_line(report_of(1000), options, 79),
            "step 1000/2000  loss 3.2145  grad 1.20  1.23k tok/s  MFU 85.3%  3m 20s left");
  EXPECT_EQ(live_line(report_of(1000), options, 45), "step 1000/2000  loss 3.2145  3m 20s left");
  EXPECT_EQ(live_line(report_of(7), options, 16), "step    7/2000");
}

TEST(LiveLine, NeverExceedsTheWidth) {
  StepReport report = report_of(1'234'567'890'123);
  report.loss = -std::numeric_limits<double>::infinity();
  report.seconds_left = 1e9;
  for (const bool unicode : {false, true}) {
    for (const int64_t total : {int64_t{0}, int64_t{2'000'000'000'000}}) {
      const TerminalOptions options{.unicode = unicode, .total_steps = total};
      for (int columns = 1; columns < 200; ++columns) {
        EXPECT_LE(display_width(live_line(report, options, columns)), columns);
      }
    }
  }
}

TEST(LiveLine, BarFillsFromEmptyToFull) {
  const auto bar_at = [](int64_t step) {
    StepReport report = report_of(step);
    report.mfu.reset();
    return live_line(report, {.unicode = true, .total_steps = 100}, 125);
  };
  EXPECT_NE(bar_at(100).find("██████████████████████████████ 100%"), std::string::npos) << bar_at(100);
  EXPECT_NE(bar_at(50).find("███████████████░░░░░░░░░░░░░░░  50%"), std::string::npos) << bar_at(50);
  EXPECT_NE(bar_at(0).find("░░░░░░░░░░░░░░░░░░░░░░░░░░░░░░   0%"), std::string::npos) << bar_at(0);
  EXPECT_NE(bar_at(200).find("██████████████████████████████ 100%"), std::string::npos) << bar_at(200);
}

TEST_F(TerminalTest, LiveLineIsReplacedInPlaceAndTheRestStandsAboveIt) {
  {
    Terminal terminal = make({.live = true, .total_steps = 30});
    terminal.step(report_of(1));
    clock_.advance_ns(1'000'000'000);
    terminal.validation({.step = 1, .set = "psalms", .loss = 2.5, .perplexity = 12.18, .tokens = 12345});
    terminal.step(report_of(2));
    terminal.message(MessageKind::warning, "careful\x1b[2J");
    terminal.print("two\nlines\n");
    clock_.advance_ns(1'000'000'000);
    terminal.step(report_of(3));
  }
  EXPECT_THAT(screen_of(written_),
              testing::ElementsAre("step 1  psalms: loss 2.5000  perplexity 12.2  (12.3k tokens)",
                                   "warning: careful?[2J", "two", "lines",
                                   testing::StartsWith("step  3/30  loss 3.2145"), ""));
}

TEST_F(TerminalTest, LiveLineIsRedrawnAtABoundedRateAndEndsWithTheLastStep) {
  Terminal terminal = make({.live = true, .total_steps = 1000});
  for (int64_t step = 1; step <= 1000; ++step) {
    terminal.step(report_of(step));
    clock_.advance_ns(1'000'000);
  }
  EXPECT_LE(std::count(written_.begin(), written_.end(), '\r'), 11);
  terminal.finish();
  terminal.finish();
  EXPECT_THAT(screen_of(written_), testing::ElementsAre(testing::StartsWith("step 1000/1000"), ""));
}

TEST_F(TerminalTest, PlainLinesComeAtABoundedRateAndEndWithTheLastStep) {
  Terminal terminal = make({.total_steps = 1000, .plain_interval_seconds = 10});
  for (int64_t step = 1; step <= 1000; ++step) {
    terminal.step(report_of(step));
    clock_.advance_ns(62'500'000);
  }
  terminal.finish();
  terminal.finish();
  const auto lines = screen_of(written_);
  ASSERT_EQ(lines.size(), 9U);  // at 0, 10 ... 60 seconds, the last step, and the empty line after it
  EXPECT_EQ(
      lines[0],
      "step    1/1000  loss 3.2145  gradient norm 1.20  rate 3.00e-04  1.23k tok/s  MFU 85.3%  3m 20s left");
  EXPECT_THAT(lines[7], testing::StartsWith("step 1000/1000"));
  EXPECT_EQ(written_.find_first_of("\r\x1b"), std::string::npos);
}

TEST_F(TerminalTest, AStepThatIsJudgedIsShownBeforeItsJudgement) {
  Terminal terminal = make({.total_steps = 2, .plain_interval_seconds = 10});
  terminal.step(report_of(1));
  terminal.step(report_of(2));
  for (const char* set : {"psalms", "proverbs"}) {
    terminal.validation({.step = 2, .set = set, .loss = 2.5, .perplexity = {}, .tokens = 9});
  }
  terminal.finish();
  EXPECT_THAT(screen_of(written_),
              testing::ElementsAre(testing::StartsWith("step 1/2"), testing::StartsWith("step 2/2"),
                                   "step 2  psalms: loss 2.5000  (9 tokens)",
                                   "step 2  proverbs: loss 2.5000  (9 tokens)", ""));
}

TEST_F(TerminalTest, EventsAreShownAtOnceButDoNotFlood) {
  Terminal terminal = make({.total_steps = 100});
  terminal.step(report_of(1));
  StepReport empty = report_of(2);
  empty.loss.reset();
  empty.event = "no valid tokens";
  terminal.step(empty);
  StepReport spike = report_of(3);
  spike.event = "loss spike";
  spike.skipped = true;
  for (int i = 0; i < 50; ++i) terminal.step(spike);
  clock_.advance_ns(2'000'000'000);
  terminal.step(spike);
  const auto lines = screen_of(written_);
  ASSERT_EQ(lines.size(), 4U);
  EXPECT_THAT(lines[1], testing::StartsWith("step   2/100  loss -  "));
  EXPECT_THAT(lines[1], testing::EndsWith("[no valid tokens]"));
  EXPECT_THAT(lines[2], testing::EndsWith("[loss spike, skipped] and 50 more before"));
}

TEST(TerminalOptionsFor, AFileIsNoTerminal) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  const TerminalOptions options = terminal_options_for(file);
  EXPECT_FALSE(options.live);
  EXPECT_FALSE(options.color);
  EXPECT_EQ(terminal_columns(file), 80);
  {
    const auto terminal = make_terminal(file, options);
    terminal->step(report_of(1));
  }
  EXPECT_GT(std::ftell(file), 40);
  std::fclose(file);
}

}  // namespace
}  // namespace athanor
