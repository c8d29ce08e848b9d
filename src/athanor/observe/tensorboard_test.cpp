#include "athanor/observe/tensorboard.h"

#include <gtest/gtest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "athanor/base/crc32c.h"
#include "athanor/base/memory_file_environment.h"

namespace athanor {
namespace {

constexpr double wall_time = 1700000000.25;

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) text += fmt::format("{:02x}", static_cast<uint8_t>(c));
  return text;
}

class TensorBoardTest : public testing::Test {
 protected:
  TensorBoardTest() { files_.make_directories("/run"); }
  std::string contents(const TensorBoard& sink) { return read_file(files_, sink.path(), 1 << 20); }
  MemoryFileEnvironment files_;
  std::function<double()> clock_ = [] { return wall_time; };
};

// The bytes were written by TensorBoard's own RecordWriter from the same events.
TEST_F(TensorBoardTest, BytesAreThoseOfTheStockWriter) {
  const std::string version =
      "1800000000000000a37f4b220900001040fc54d9411a0d627261696e2e4576656e743a32338d2fe9";
  const std::string session = "100000000000000095fbfe180900001040fc54d94110ad023a020801cb79b93b";
  const std::string scalars =
      "2400000000000000422b804d0900001040fc54d94110ac022a160a0a0a03612f6215000020400a080a0163150000807f9098da"
      "c1";
  const TensorBoard sink(files_, "/run", 300, clock_);
  EXPECT_EQ(hex(contents(sink)), version + session);
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(hex(tensorboard_record(tensorboard_event(wall_time, 300, {{"a/b", 2.5}, {"c", infinity}}))),
            scalars);
  // What a float cannot hold becomes infinite instead of undefined.
  EXPECT_EQ(hex(tensorboard_record(tensorboard_event(wall_time, 300, {{"a/b", 2.5}, {"c", 1e300}}))),
            scalars);
}

// Walks the records of a file as a reader does: length, its checksum, data, its checksum.
std::vector<std::string> records_of(const std::string& file) {
  const auto masked = [](std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8U; };
  std::vector<std::string> records;
  for (size_t at = 0; at < file.size();) {
    uint64_t length = 0;
    uint32_t checksum = 0;
    std::memcpy(&length, file.data() + at, 8);
    std::memcpy(&checksum, file.data() + at + 8, 4);
    EXPECT_EQ(checksum, masked(std::string_view(file).substr(at, 8)));
    records.push_back(file.substr(at + 12, length));
    std::memcpy(&checksum, file.data() + at + 12 + length, 4);
    EXPECT_EQ(checksum, masked(records.back()));
    at += 16 + length;
  }
  return records;
}

TEST_F(TensorBoardTest, OneRecordAStepWithWhatIsKnown) {
  TensorBoard sink(files_, "/run", 0, clock_);
  StepReport report;
  report.step = 1;
  report.loss = 2.5;
  sink.step(report);
  report.step = int64_t{1} << 40;
  report.mfu = 0.75;
  sink.step(report);
  sink.validation({.step = 1, .set = "held-out", .loss = 3.0});
  sink.validation({.step = 1, .set = "empty"});
  const auto records = records_of(contents(sink));
  ASSERT_EQ(records.size(), 5U);
  EXPECT_NE(records[2].find("train/loss"), std::string::npos);
  EXPECT_EQ(records[2].find("train/gradient_norm"), std::string::npos);
  EXPECT_EQ(records[2].find("speed/mfu"), std::string::npos);
  EXPECT_NE(records[3].find("speed/mfu"), std::string::npos);
  EXPECT_NE(records[3].find(std::string("\x10\x80\x80\x80\x80\x80\x20", 7)), std::string::npos);  // 2^40
  EXPECT_NE(records[4].find("validation/held-out/loss"), std::string::npos);
  EXPECT_EQ(records[4].find("perplexity"), std::string::npos);
}

TEST_F(TensorBoardTest, EveryRunHasAFileOfItsOwnInOrder) {
  const TensorBoard first(files_, "/run", 0, clock_), second(files_, "/run", 10, clock_);
  const TensorBoard later(files_, "/run", 20, [] { return wall_time + 1; });
  EXPECT_LT(first.path(), second.path());
  EXPECT_LT(second.path(), later.path());
  EXPECT_NE(first.path().find("tfevents"), std::string::npos);
}

TEST_F(TensorBoardTest, FinishedRecordsSurviveAPowerFailure) {
  TensorBoard sink(files_, "/run", 0, clock_);
  sink.step({.step = 1});
  sink.finish();
  const std::string before = contents(sink);
  sink.step({.step = 2});
  files_.crash(CrashLoss::everything_not_synced);
  EXPECT_EQ(contents(sink), before);
}

}  // namespace
}  // namespace athanor
