#include "athanor/ir/shape.h"

#include <gtest/gtest.h>

namespace athanor {
namespace {

TEST(Shape, CountsElementsRowsAndTokens) {
  const Shape shape{2, 16, 4, 8};
  EXPECT_EQ(shape.rank(), 4);
  EXPECT_EQ(shape[-1], 8);
  EXPECT_EQ(shape[-4], 2);
  EXPECT_EQ(shape.elements(), 1024);
  EXPECT_EQ(shape.rows(), 128);
  EXPECT_EQ(shape.tokens(), 32);
  EXPECT_EQ(shape.elements_per_token(), 32);
  EXPECT_EQ(Shape({7}).tokens(), 7);
  EXPECT_EQ(Shape({7}).rows(), 1);
  EXPECT_EQ(Shape({5, 3}).tokens(), 15);
  EXPECT_EQ(Shape({5, 3}).elements_per_token(), 1);
  EXPECT_EQ(Shape().elements(), 1);
  EXPECT_EQ(Shape({0, 3, 5}).elements(), 0);
  EXPECT_EQ(Shape({50257, 12288, 100000}).elements(), int64_t{50257} * 12288 * 100000);  // above 2^32
}

TEST(Shape, BoundedDimsAreAPartOfIt) {
  Shape shape{2, 16, 64};
  shape.set_bounded(1);
  EXPECT_TRUE(shape.bounded(1));
  EXPECT_FALSE(shape.bounded(2));
  EXPECT_NE(shape, Shape({2, 16, 64}));
  EXPECT_EQ(to_text(shape), "[2,<=16,64]");
}

TEST(Shape, TextParsesBack) {
  Shape bounded{3, 0, 7, 1, 2, 9};
  bounded.set_bounded(0);
  bounded.set_bounded(5);
  for (const Shape& shape : {Shape(), Shape({0}), Shape({1, 2, 3}), bounded}) {
    EXPECT_EQ(parse_shape(to_text(shape)), shape) << to_text(shape);
  }
}

TEST(Shape, OtherTextIsRefused) {
  for (const char* text : {"", "[", "]", "3", "[3", "3]", "[3,]", "[,3]", "[-1]", "[3 4]", "[x]", "[<=]",
                           "[<3]", "[1,2,3,4,5,6,7]", "[9999999999999999999]", "[2000000000,2000000000]",
                           "[0,2000000000,2000000000]", "[1.5]", "[3]]"}) {
    EXPECT_EQ(parse_shape(text), std::nullopt) << text;
  }
}

}  // namespace
}  // namespace athanor
