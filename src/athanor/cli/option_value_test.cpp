#include "athanor/cli/option_value.h"

#include <gtest/gtest.h>

#include <limits>

#include "athanor/base/error.h"

namespace athanor {
namespace {

int64_t integer(std::string_view text) {
  return std::get<int64_t>(parse_option_value(OptionType::integer, text));
}
double number(std::string_view text) {
  return std::get<double>(parse_option_value(OptionType::number, text));
}

TEST(OptionValue, WholeNumbersWithUnderscoresAndSuffixes) {
  EXPECT_EQ(integer("0"), 0);
  EXPECT_EQ(integer("-12"), -12);
  EXPECT_EQ(integer("+12"), 12);
  EXPECT_EQ(integer(" 1_000_000 "), 1'000'000);
  EXPECT_EQ(integer("20k"), 20'000);
  EXPECT_EQ(integer("-5M"), -5'000'000);
  EXPECT_EQ(integer("9G"), 9'000'000'000);
  EXPECT_EQ(integer("9223372036854775807"), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(integer("-9223372036854775808"), std::numeric_limits<int64_t>::min());
  for (const char* wrong : {"", " ", "k", "-", "+-1", "1.5", "1e6", "1__0", "_1", "1_", "1_k", "12kk", "0x10",
                            "ten", "9223372036854775808", "10000000000G", "1 2", "1k2"}) {
    EXPECT_THROW(integer(wrong), Error) << wrong;
  }
}

TEST(OptionValue, Numbers) {
  EXPECT_EQ(number("6e-4"), 6e-4);
  EXPECT_EQ(number("-1"), -1.0);
  EXPECT_EQ(number("1_000.5"), 1000.5);
  EXPECT_EQ(number(".5"), 0.5);
  for (const char* wrong :
       {"", "inf", "nan", "-inf", "1e999", "0.1f", "1,5", "0x1p3", "abc", "+-1", "1__0", "_1"}) {
    EXPECT_THROW(number(wrong), Error) << wrong;
  }
}

TEST(OptionValue, BooleansStringsAndLists) {
  EXPECT_EQ(parse_option_value(OptionType::boolean, "true"), OptionValue(true));
  for (const char* wrong : {"", "1", "yes", "True"}) {
    EXPECT_THROW(parse_option_value(OptionType::boolean, wrong), Error) << wrong;
  }
  EXPECT_EQ(parse_option_value(OptionType::string, " a=b, "), OptionValue(std::string(" a=b, ")));
  EXPECT_THROW(parse_option_value(OptionType::string, "\xff"), Error);
  EXPECT_EQ(parse_option_value(OptionType::integer_list, "1, 2k,-3"), OptionValue(IntegerList{1, 2000, -3}));
  EXPECT_EQ(parse_option_value(OptionType::integer_list, ""), OptionValue(IntegerList{}));
  EXPECT_THROW(parse_option_value(OptionType::integer_list, "1,,2"), Error);
  EXPECT_EQ(parse_option_value(OptionType::string_list, "a, b"), OptionValue(StringList{"a", "b"}));
  EXPECT_THROW(parse_option_value(OptionType::string_map, "a=b"), Error);
}

TEST(OptionValue, PrintsAsToml) {
  EXPECT_EQ(to_toml(true), "true");
  EXPECT_EQ(to_toml(int64_t{-3}), "-3");
  EXPECT_EQ(to_toml(1.0), "1.0");
  EXPECT_EQ(to_toml(1e-5), "1e-05");
  EXPECT_EQ(to_toml(1e300), "1e+300");
  EXPECT_EQ(to_toml(-0.0), "-0.0");
  EXPECT_EQ(to_toml(std::string("a\"b\\\n\x01\x7f")), R"("a\"b\\\n\u0001\u007F")");
  EXPECT_EQ(to_toml(IntegerList{1, 2}), "[1, 2]");
  EXPECT_EQ(to_toml(StringList{}), "[]");
  EXPECT_EQ(to_toml(StringMap{{"a", "x"}, {"b c", "y"}}), R"({ a = "x", "b c" = "y" })");
  EXPECT_EQ(to_toml(StringMap{}), "{}");
}

TEST(OptionValue, Utf8) {
  for (const char* right :
       {"", "abc", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x94\xa5", "\xed\x9f\xbf", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(is_valid_utf8(right)) << right;
  }
  // A lone continuation, a cut character, overlong forms, a surrogate, beyond Unicode, bytes never used.
  for (const char* wrong : {"\x80", "\xc3", "\xe2\x82", "\xc0\x80", "\xe0\x80\x80", "\xf0\x80\x80\x80",
                            "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xf8\x88\x80\x80\x80", "\xff", "a\xc3("}) {
    EXPECT_FALSE(is_valid_utf8(wrong));
  }
}

}  // namespace
}  // namespace athanor
