#include "athanor/observe/terminal_chart.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "athanor/observe/format.h"
#include "athanor/observe/loss_test_support.h"

namespace athanor {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

bool is_ascii(const std::string& text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}

TEST(TerminalChart, FitsItsSizeAndShowsTheCurve) {
  LossHistory history = history_of(1000);
  history.add_validation(500, "psalms", 2.2);
  history.add_validation(1000, "acts", 1.9);
  const LossChart chart = make_loss_chart(history, "run", 0);
  for (const bool unicode : {true, false}) {
    for (const int width : {30, 57, 80, 200}) {
      for (const int height : {8, 18, 60}) {
        const auto text =
            render_terminal_chart(chart, {.width = width, .height = height, .unicode = unicode});
        const auto lines = lines_of(text);
        EXPECT_EQ(lines.size(), static_cast<size_t>(height));
        for (const auto& line : lines) EXPECT_LE(display_width(line), width) << line;
        EXPECT_TRUE(unicode || is_ascii(text));
      }
    }
  }
}

TEST(TerminalChart, AsciiPicture) {
  LossHistory history;
  for (int64_t step = 1; step <= 30; ++step) history.add(step, 30.0 - static_cast<double>(step));
  history.add_validation(15, "held", 4.0);
  const auto text = render_terminal_chart(make_loss_chart(history, "run", 0),
                                          {.width = 42, .height = 12, .unicode = false});
  EXPECT_EQ(text,
            "    ** loss: train 0.0000   o held 4.0000\n"
            "30 + *\n"
            "   |  *****\n"
            "   |       *****\n"
            "20 +            *****\n"
            "   |                 *****\n"
            "10 +                      *****\n"
            "   |                           *****\n"
            "   |                   o            *****\n"
            " 0 +                                     *\n"
            "   ++-----------+------------+-----------+\n"
            "    0          10           20          30\n");
}

}  // namespace
}  // namespace athanor
