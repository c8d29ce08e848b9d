#include "athanor/observe/svg_chart.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <string>
#include <vector>

#include "athanor/observe/loss_test_support.h"

namespace athanor {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

// Good enough a reader for the pictures at hand: tags nest, attributes are quoted, no stray '<' or '&'.
void expect_well_formed(const std::string& svg) {
  std::vector<std::string> open;
  for (size_t at = 0; at < svg.size(); ++at) {
    if (svg[at] == '&') {
      const size_t end = svg.find(';', at);
      ASSERT_NE(end, std::string::npos);
      EXPECT_THAT(svg.substr(at, end - at + 1), testing::AnyOf("&amp;", "&lt;", "&gt;", "&quot;"));
    }
    if (svg[at] != '<') continue;
    const size_t end = svg.find('>', at);
    ASSERT_NE(end, std::string::npos);
    const std::string tag = svg.substr(at + 1, end - at - 1);
    ASSERT_EQ(tag.find('<'), std::string::npos) << tag;
    EXPECT_EQ(std::count(tag.begin(), tag.end(), '"') % 2, 0) << tag;
    const std::string name = tag.substr(0, tag.find_first_of(" /", 1));
    if (tag[0] == '/') {
      ASSERT_FALSE(open.empty());
      EXPECT_EQ("/" + open.back(), tag);
      open.pop_back();
    } else if (tag.back() != '/') {
      open.push_back(name);
    }
    at = end;
  }
  EXPECT_TRUE(open.empty());
}

TEST(SvgChart, IsWellFormedWhateverTheNames) {
  LossHistory history = history_of(200);
  history.add(201, nan);
  history.add_validation(100, "a<b>&\"c\"\x01\xff", 2.0);
  history.add_validation(200, std::string(500, 'w'), 2.1);
  const std::string svg = render_svg(make_loss_chart(history, "<run> & 'co'", 10'251'184'259));
  expect_well_formed(svg);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;&quot;c&quot;"), std::string::npos);
  EXPECT_NE(svg.find("10.3B tokens"), std::string::npos);
  EXPECT_EQ(svg.find("nan"), std::string::npos);
  EXPECT_EQ(svg.find("inf"), std::string::npos);
}

TEST(SvgChart, SizeIsBounded) {
  LossHistory history;
  for (int64_t step = 1; step <= 2'000'000; ++step) {
    history.add(step,
                falling(step) + 0.5 * std::sin(static_cast<double>(step)) + (step % 5000 == 0 ? 90.0 : 0.0));
  }
  for (int set = 0; set < 20; ++set) {
    for (int64_t step = 0; step < 2'000'000; step += 1000) {
      history.add_validation(step, fmt::format("validation set number {}", set), 2.0 + 0.01 * set);
    }
  }
  EXPECT_LT(render_svg(make_loss_chart(history, "long", 1)).size(), 256U << 10);
}

// The height of the line in the picture follows the number it shows.
TEST(SvgChart, PointsStandWhereTheirValuesAre) {
  LossHistory history;
  history.add(1, 4.0);
  history.add(2, 2.0);
  history.add(4, 3.0);
  const LossChart chart = make_loss_chart(history, "run", 0);
  const std::string svg = render_svg(chart);
  const size_t begin = svg.find("class=\"train\" points=\"") + 22;
  const std::string points = svg.substr(begin, svg.find('"', begin) - begin);
  double x[3], y[3];
  ASSERT_EQ(std::sscanf(points.c_str(), "%lf,%lf %lf,%lf %lf,%lf", &x[0], &y[0], &x[1], &y[1], &x[2], &y[2]),
            6);
  EXPECT_NEAR(x[2] - x[1], 2 * (x[1] - x[0]), 0.21);    // steps 1, 2, 4
  EXPECT_NEAR(y[1] - y[2], 0.5 * (y[1] - y[0]), 0.21);  // 3 lies midway between 2 and 4, and up is less
  EXPECT_GT(y[1], y[0]);
}

}  // namespace
}  // namespace athanor
