#include "athanor/cli/stoppable_weights.h"

#include <gtest/gtest.h>

#include <array>
#include <csignal>

namespace athanor {
namespace {

class OneWeight final : public WeightReader {
 public:
  const std::string& path() const override { return path_; }
  std::span<const WeightEntry> entries() const override { return entries_; }
  void read(const WeightEntry& /*entry*/, DType /*dtype*/, std::span<std::byte> out) const override {
    out[0] = std::byte{7};
  }

 private:
  std::string path_ = "there";
  std::vector<WeightEntry> entries_ = {{"weight", DType::fp32, {1}}};
};

TEST(StoppableWeights, AreReadUntilASignalComes) {
  const OneWeight weights;
  const WeightEntry* entry = weights.find("weight");
  ASSERT_NE(entry, nullptr);
  for (const int signal : {SIGINT, SIGTERM}) {
    const StoppableWeights stoppable(weights);
    EXPECT_EQ(stoppable.path(), "there");
    EXPECT_EQ(stoppable.entries().size(), 1U);
    std::array<std::byte, 4> bytes{};
    stoppable.read(*entry, DType::fp32, bytes);
    EXPECT_EQ(bytes[0], std::byte{7});
    std::raise(signal);
    try {
      stoppable.read(*entry, DType::fp32, bytes);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      EXPECT_NE(error.message().find("stopped: "), std::string::npos) << error.message();
    }
  }
}

}  // namespace
}  // namespace athanor
