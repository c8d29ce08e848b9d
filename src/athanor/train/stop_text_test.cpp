#include "athanor/train/stop_text.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

// What is passed on of a text in pieces of `size` bytes.
std::string passed(const std::vector<std::string>& stops, const std::string& text, size_t size) {
  StopText stop(stops);
  std::string result;
  for (size_t i = 0; i < text.size() && !stop.ended(); i += size) result += stop.append(text.substr(i, size));
  if (!stop.ended()) result += stop.finish();
  return result;
}

TEST(StopText, EndsBeforeTheFirstOfThem) {
  for (size_t size = 1; size < 30; ++size) {
    EXPECT_EQ(passed({"\n\n", "END"}, "one\ntwo\n\nthree END", size), "one\ntwo");
    EXPECT_EQ(passed({"END", "\n\n"}, "one END two\n\n", size), "one ");
    EXPECT_EQ(passed({"aab"}, "caaabd", size), "ca");  // begins again within its own beginning
    EXPECT_EQ(passed({"xyz"}, "no stop xy", size), "no stop xy");
    EXPECT_EQ(passed({}, "all of it", size), "all of it");
    EXPECT_EQ(passed({""}, "all of it", size), "all of it");
    EXPECT_EQ(passed({"all"}, "all of it", size), "");
  }
}

TEST(StopText, HoldsBackNoMoreThanItMust) {
  StopText stop({"END"});
  EXPECT_EQ(stop.append("some E"), "some ");
  EXPECT_EQ(stop.append("N"), "");
  EXPECT_EQ(stop.append("E"), "EN");
  EXPECT_EQ(stop.append("ND"), "");
  EXPECT_TRUE(stop.ended());
  EXPECT_EQ(stop.append("more"), "");
  EXPECT_EQ(stop.finish(), "");
}

}  // namespace
}  // namespace athanor
