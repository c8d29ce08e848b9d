#include "athanor/base/json_depth.h"

#include <gtest/gtest.h>

#include <string>

namespace athanor {
namespace {

TEST(JsonDepth, CountsObjectsAndLists) {
  EXPECT_FALSE(json_is_deeper_than("", 0));
  EXPECT_FALSE(json_is_deeper_than("1", 0));
  EXPECT_TRUE(json_is_deeper_than("[]", 0));
  EXPECT_FALSE(json_is_deeper_than(R"([{"a": [1]}, [[2]], {}])", 3));
  EXPECT_TRUE(json_is_deeper_than(R"([{"a": [1]}, [[2]], {}])", 2));
  EXPECT_TRUE(json_is_deeper_than(std::string(1'000'000, '['), deepest_json));
}

TEST(JsonDepth, BracketsInStringsAreText) {
  EXPECT_FALSE(json_is_deeper_than(R"({"[[[[": "{{{{\"[[[[\\"})", 1));
  EXPECT_TRUE(json_is_deeper_than(R"({"a\\": [1]})", 1));
  EXPECT_FALSE(json_is_deeper_than("\"[[[", 1));
  EXPECT_FALSE(json_is_deeper_than("\"[[[\\", 1));
}

}  // namespace
}  // namespace athanor
