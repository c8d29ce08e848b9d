#include "athanor/base/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/base/temporary_folder.h"

namespace athanor {
namespace {

class LogTest : public testing::Test {
 protected:
  std::vector<std::string> lines(const std::string& path) {
    std::vector<std::string> result;
    const std::string text = read_file(system_files(), path, 1 << 20);
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = text.find('\n', begin);
      EXPECT_NE(end, std::string::npos) << "the last line has no end";
      result.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return result;
  }
  static constexpr size_t stamp = sizeof("2026-01-31T12:00:00.123Z");  // with the blank after it

  TemporaryFolder folder_;
  std::string path_ = join_path(folder_.path(), "log.txt");
};

TEST_F(LogTest, LinesHaveTimeLevelNameAndText) {
  {
    Log log({LogLevel::info, false, path_, "rank 3"});
    log.debug("not {}", "wanted");
    log.info("loss {:.2f}", 1.5);
    log.warning("slow");
    log.error("{}{}", 1, 2);
  }
  const auto found = lines(path_);
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].substr(stamp), "info rank 3: loss 1.50");
  EXPECT_EQ(found[1].substr(stamp), "warning rank 3: slow");
  EXPECT_EQ(found[2].substr(stamp), "error rank 3: 12");
  EXPECT_EQ(found[0][4], '-');
  EXPECT_EQ(found[0][10], 'T');
  EXPECT_EQ(found[0][23], 'Z');
}

TEST_F(LogTest, LevelCanChangeAndUnwantedArgumentsAreNotFormatted) {
  Log log({LogLevel::off, false, path_, ""});
  log.error("dropped");
  EXPECT_FALSE(log.wants(LogLevel::error));
  log.set_level(LogLevel::debug);
  EXPECT_TRUE(log.wants(LogLevel::debug));
  log.debug("kept");
  const auto found = lines(path_);  // readable while the log is open: every line is flushed
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].substr(stamp), "debug kept");
}

TEST_F(LogTest, TextsCannotForgeLinesOrTerminalCodes) {
  Log log({LogLevel::info, false, path_, ""});
  log.info("a\nb \x1b[31m {}", "%v {}");
  const auto found = lines(path_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1], "    b \\x1b[31m %v {}");
}

TEST_F(LogTest, AppendsAndTwoLogsLiveSideBySide) {
  Log first({LogLevel::info, false, path_, "one"});
  first.info("x");
  Log second({LogLevel::info, false, path_, "two"});
  second.info("y");
  EXPECT_EQ(lines(path_).size(), 2u);
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  Log log({LogLevel::info, false, path_, ""});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 50; ++i) log.info("0123456789");
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto found = lines(path_);
  ASSERT_EQ(found.size(), 200u);
  for (const std::string& line : found) EXPECT_EQ(line.substr(stamp), "info 0123456789");
}

TEST_F(LogTest, FileThatCannotBeOpenedIsRefusedAndFullDiskIsNot) {
  try {
    Log log({LogLevel::info, false, "/proc/none/log.txt", ""});
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_NE(error.message().find("/proc/none/log.txt"), std::string::npos);
  }
  Log log({LogLevel::info, false, "/dev/full", ""});
  log.error("no room for this");
}

TEST_F(LogTest, WritesToStandardError) {
  testing::internal::CaptureStderr();
  {
    Log log({LogLevel::warning, true, "", "rank 0"});
    log.info("no");
    log.warning("yes");
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_EQ(text.substr(std::min(stamp, text.size())), "warning rank 0: yes\n");
}

}  // namespace
}  // namespace athanor
