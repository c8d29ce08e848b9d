#include "athanor/observe/format.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace athanor {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();
constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(Format, CountsKeepThreeDigitsAndStepUpWhereRoundingDoes) {
  EXPECT_EQ(format_count(int64_t{0}), "0");
  EXPECT_EQ(format_count(int64_t{7}), "7");
  EXPECT_EQ(format_count(int64_t{999}), "999");
  EXPECT_EQ(format_count(int64_t{1000}), "1.00k");
  EXPECT_EQ(format_count(int64_t{1234}), "1.23k");
  EXPECT_EQ(format_count(int64_t{12345}), "12.3k");
  EXPECT_EQ(format_count(int64_t{99949}), "99.9k");
  EXPECT_EQ(format_count(int64_t{99960}), "100k");
  EXPECT_EQ(format_count(int64_t{999499}), "999k");
  EXPECT_EQ(format_count(int64_t{999500}), "1.00M");
  EXPECT_EQ(format_count(int64_t{10'251'184'259}), "10.3B");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::max()), "9.22e+06T");
  EXPECT_EQ(format_count(std::numeric_limits<int64_t>::min()), "-9.22e+06T");
  EXPECT_EQ(format_count(0.1234), "0.123");
  EXPECT_EQ(format_count(12.5), "12.5");
  EXPECT_EQ(format_count(nan), "nan");
  EXPECT_EQ(format_count(-infinity), "-inf");
}

TEST(Format, ExactCountsShowEveryDigit) {
  EXPECT_EQ(format_counted(1, "token"), "1 token");
  EXPECT_EQ(format_counted(1024, "token"), "1,024 tokens");
  EXPECT_EQ(format_exact(0), "0");
  EXPECT_EQ(format_exact(999), "999");
  EXPECT_EQ(format_exact(-999), "-999");
  EXPECT_EQ(format_exact(1000), "1,000");
  EXPECT_EQ(format_exact(-123456), "-123,456");
  EXPECT_EQ(format_exact(10'251'184'259), "10,251,184,259");
  EXPECT_EQ(format_exact(std::numeric_limits<int64_t>::min()), "-9,223,372,036,854,775,808");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(1.5 * 1024 * 1024 * 1024), "1.50 GiB");
  EXPECT_EQ(format_bytes(1000.0 * 1024), "1000 KiB");
  EXPECT_EQ(format_bytes(1024.0 * 1024 - 1), "1.00 MiB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(format_seconds(0), "0 s");
  EXPECT_EQ(format_seconds(2.5e-9), "2.50 ns");
  EXPECT_EQ(format_seconds(3.4e-5), "34.0 us");
  EXPECT_EQ(format_seconds(0.0123), "12.3 ms");
  EXPECT_EQ(format_seconds(0.99951), "1.00 s");
  EXPECT_EQ(format_seconds(4.213), "4.21 s");
  EXPECT_EQ(format_seconds(59.96), "1m 00s");
  EXPECT_EQ(format_seconds(200), "3m 20s");
  EXPECT_EQ(format_seconds(3599.6), "1h 00m");
  EXPECT_EQ(format_seconds(7500), "2h 05m");
  EXPECT_EQ(format_seconds(86390), "1d 00h");
  EXPECT_EQ(format_seconds(86400 * 3 + 3600 * 4), "3d 04h");
  EXPECT_EQ(format_seconds(-200), "-3m 20s");
  EXPECT_EQ(format_seconds(1e300), "3.17e+292 years");
  EXPECT_EQ(format_seconds(infinity), "inf");
}

TEST(Format, LossRateShareAndShortNumbers) {
  EXPECT_EQ(format_loss(2.34567), "2.3457");
  EXPECT_EQ(format_loss(99.99999), "100");
  EXPECT_EQ(format_loss(123.456), "123.46");
  EXPECT_EQ(format_loss(nan), "nan");
  EXPECT_EQ(format_rate(1234), "1.23k tok/s");
  EXPECT_EQ(format_share(0.853), "85.3%");
  EXPECT_EQ(format_short(0), "0");
  EXPECT_EQ(format_short(1.2), "1.20");
  EXPECT_EQ(format_short(0.0345), "0.0345");
  EXPECT_EQ(format_short(3e-4), "3.00e-04");
  EXPECT_EQ(format_short(123456), "1.23e+05");
  EXPECT_EQ(format_short(infinity), "inf");
}

TEST(Format, PrintableTextIsValidAndHarmless) {
  EXPECT_EQ(printable("k\xc3\xa4se \xe2\x82\xac \xf0\x9f\x94\xa5"),
            "k\xc3\xa4se \xe2\x82\xac \xf0\x9f\x94\xa5");
  EXPECT_EQ(printable("k\xc3\xa4se", true), "k?se");
  EXPECT_EQ(printable("a\x1b[2Jb\n", true), "a?[2Jb?");
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(printable_lines("\na\x1b\n\nb", true), "\na?\n\nb");
  EXPECT_EQ(printable_lines("a\n"), "a\n");
  EXPECT_EQ(printable("\xff"), bad);
  EXPECT_EQ(printable("\xc3"), bad);                      // cut short
  EXPECT_EQ(printable("\xc0\xaf"), bad + bad);            // overlong
  EXPECT_EQ(printable("\xed\xa0\x80"), bad + bad + bad);  // surrogate
  EXPECT_EQ(printable("\xc2\x9b"), bad);                  // C1 control
  EXPECT_EQ(printable("\xe2\x80\xae"), bad);              // right-to-left override
}

TEST(Format, WidthCountsColumns) {
  EXPECT_EQ(display_width("abc"), 3);
  EXPECT_EQ(display_width("\xe2\x94\x81\xe2\x94\x81"), 2);
  EXPECT_EQ(display_width("e\xcc\x81"), 1);
  EXPECT_EQ(display_width("\xe6\x97\xa5\xe6\x9c\xac"), 4);
  EXPECT_EQ(fit_to_width("abc", 2), "ab");
  EXPECT_EQ(fit_to_width("abc", 5), "abc");
  EXPECT_EQ(fit_to_width("\xe6\x97\xa5\xe6\x9c\xac", 3), "\xe6\x97\xa5");
  EXPECT_EQ(fit_to_width("abc", 0), "");
  EXPECT_EQ(fit_to_width("abc", -1), "");
}

}  // namespace
}  // namespace athanor
