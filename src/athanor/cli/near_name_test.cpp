#include "athanor/cli/near_name.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

TEST(OptionValue, EditDistance) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("abc", ""), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3);
  EXPECT_EQ(edit_distance("steps", "setps"), 1);  // neighbours swapped
  EXPECT_EQ(edit_distance("ca", "abc"), 3);       // no part is edited twice
}

TEST(NearName, IsWhatWasMeant) {
  const std::vector<std::string> names = {"train", "show", "generate"};
  EXPECT_EQ(nearest_name("trian", names), "train");
  EXPECT_EQ(nearest_name("generat", names), "generate");
  EXPECT_EQ(nearest_name("xyz", names), "");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(1000, 't'), names), "");
}

}  // namespace
}  // namespace athanor
