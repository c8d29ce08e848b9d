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

TEST_F(LogTest, LinesHaveTimeLevelAndText) {
  Log log(system_files(), path_);
  log.write(LogLevel::info, "loss 1.50");
  log.write(LogLevel::warning, "slow");
  log.write(LogLevel::error, "%v {}");
  const auto found = lines(path_);  // readable while the log is open
  ASSERT_EQ(found.size(), 3u);
  EXPECT_EQ(found[0].substr(stamp), "info loss 1.50");
  EXPECT_EQ(found[1].substr(stamp), "warning slow");
  EXPECT_EQ(found[2].substr(stamp), "error %v {}");
  EXPECT_EQ(found[0][4], '-');
  EXPECT_EQ(found[0][10], 'T');
  EXPECT_EQ(found[0][23], 'Z');
}

TEST_F(LogTest, TextsCannotForgeLinesOrTerminalCodes) {
  Log log(system_files(), path_);
  log.write(LogLevel::info, "a\nb \x1b[31m");
  const auto found = lines(path_);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1], "    b \\x1b[31m");
}

TEST_F(LogTest, Appends) {
  for (const char* text : {"x", "y"}) Log(system_files(), path_).write(LogLevel::info, text);
  EXPECT_EQ(lines(path_).size(), 2u);
}

TEST_F(LogTest, LinesOfManyThreadsStayWhole) {
  Log log(system_files(), path_);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&log] {
      for (int i = 0; i < 50; ++i) log.write(LogLevel::info, "0123456789");
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto found = lines(path_);
  ASSERT_EQ(found.size(), 200u);
  for (const std::string& line : found) EXPECT_EQ(line.substr(stamp), "info 0123456789");
}

TEST_F(LogTest, FileThatCannotBeOpenedIsRefusedAndFullDiskIsNot) {
  try {
    Log log(system_files(), "/proc/none/log.txt");
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_NE(error.message().find("/proc/none/log.txt"), std::string::npos);
  }
  Log(system_files(), "/dev/full").write(LogLevel::error, "no room for this");
}

}  // namespace
}  // namespace athanor
