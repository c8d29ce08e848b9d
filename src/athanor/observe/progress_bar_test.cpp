#include "athanor/observe/progress_bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/observe/format.h"

namespace athanor {
namespace {

TEST(ProgressLine, FitsItsWidth) {
  const ProgressBar::State state{"counting words", 25, 100, "12 MB/s"};
  EXPECT_EQ(progress_line(state, 3, false, 60),
            "counting words [####............]  25%  3.00 s left  12 MB/s");
  EXPECT_EQ(progress_line(state, -1, false, 100),
            "counting words [##########..............................]  25%  12 MB/s");
  for (int columns = 1; columns < 120; ++columns) {
    for (const bool unicode : {false, true}) {
      EXPECT_LE(display_width(progress_line(state, 3, unicode, columns)), columns);
    }
  }
  EXPECT_EQ(progress_line({"reading", 5, 0, "1 MB"}, -1, false, 80), "reading  1 MB");
  EXPECT_THAT(progress_line({"x", 7, 5, ""}, 0, false, 80), testing::HasSubstr("100%"));
}

TEST(ProgressBar, IsRedrawnInPlaceAtABoundedRateAndGoes) {
  ManualClock clock;
  std::string screen;
  TerminalOptions options;
  options.live = true;
  {
    ProgressBar bar(options, [&](std::string_view text) { screen += text; }, [] { return 50; }, clock);
    for (int i = 0; i < 100; ++i) {
      bar.update({"a", i, 100});
      clock.advance_ns(10'000'000);
    }
    EXPECT_EQ(std::count(screen.begin(), screen.end(), '\r'), 10);
    EXPECT_EQ(std::count(screen.begin(), screen.end(), '\n'), 0);
    EXPECT_THAT(screen, testing::HasSubstr("50%  500 ms left"));
  }
  EXPECT_TRUE(screen.ends_with("\r\x1b[K"));
}

TEST(ProgressBar, AFileGetsALineNowAndThen) {
  ManualClock clock;
  std::string file;
  ProgressBar bar({}, [&](std::string_view text) { file += text; }, [] { return 50; }, clock);
  for (int second = 0; second <= 25; ++second) {
    bar.update({"a", second, 100});
    clock.advance_ns(1'000'000'000);
  }
  EXPECT_EQ(std::count(file.begin(), file.end(), '\n'), 2);
  EXPECT_THAT(file, testing::Not(testing::HasSubstr("\r")));
  EXPECT_THAT(file, testing::HasSubstr("10%  1m 30s left"));
}

}  // namespace
}  // namespace athanor
