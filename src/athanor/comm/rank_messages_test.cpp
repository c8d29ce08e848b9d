#include "athanor/comm/rank_messages.h"

#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/comm/rank_threads.h"

namespace athanor {
namespace {

std::vector<std::byte> pattern(int64_t length, int salt) {
  std::vector<std::byte> bytes(static_cast<size_t>(length));
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>((i * 31 + i / 251 + static_cast<size_t>(salt)) & 0xFF);
  return bytes;
}

TEST(RankMessages, ALoneRankHasNobodyToTalkTo) {
  RankMessages alone(nullptr);
  EXPECT_EQ(alone.ranks(), 1);
  EXPECT_TRUE(alone.is_first());
  EXPECT_TRUE(alone.any(true));
  EXPECT_FALSE(alone.any(false));
  std::string text = "text";
  alone.broadcast(text);
  EXPECT_EQ(text, "text");
  double sum = 2;
  alone.all_sum({&sum, 1});
  EXPECT_EQ(sum, 2);
}

TEST(RankMessages, AgreeOnTheLargestAndOnSums) {
  const auto errors = run_rank_threads(5, [](Communicator& communicator) {
    RankMessages messages(&communicator);
    for (int64_t round = 0; round < 3; ++round) {
      std::array<int64_t, 2> values{messages.rank() + round, -messages.rank()};
      messages.all_max(values);
      EXPECT_EQ(values[0], 4 + round);
      EXPECT_EQ(values[1], 0);
      std::array<double, 1> sum{static_cast<double>(messages.rank())};
      messages.all_sum(sum);
      EXPECT_EQ(sum[0], 10);
      EXPECT_EQ(messages.any(messages.rank() == round), true);
      EXPECT_FALSE(messages.any(false));
    }
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(RankMessages, CarryAnyLength) {
  const auto errors = run_rank_threads(3, [](Communicator& communicator) {
    RankMessages messages(&communicator);
    for (const int64_t length : {int64_t{0}, int64_t{1}, int64_t{7}, int64_t{8}, RankMessages::piece_bytes,
                                 2 * RankMessages::piece_bytes + 3}) {
      std::vector<std::byte> told;
      if (messages.is_first()) told = pattern(length, 9);
      messages.broadcast(told);
      EXPECT_EQ(told, pattern(length, 9));
      if (messages.is_first()) {
        for (const int from : {2, 1}) {
          std::vector<std::byte> got;
          messages.receive(from, got);
          EXPECT_EQ(got, pattern(length + from, from));
        }
      } else {
        messages.send(0, pattern(length + messages.rank(), messages.rank()));
      }
    }
    std::string text = messages.is_first() ? "step 7" : "";
    messages.broadcast(text);
    EXPECT_EQ(text, "step 7");
  });
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(RankMessages, ARankThatGivesUpEndsTheWaitOfAll) {
  const auto errors = run_rank_threads(3, [](Communicator& communicator) {
    RankMessages messages(&communicator);
    messages.wait_for_all();
    if (messages.rank() == 1) {
      messages.abort("the disk is full");
      return;
    }
    std::vector<std::byte> message;
    if (messages.is_first()) messages.receive(1, message);
    messages.wait_for_all();
    FAIL();
  });
  EXPECT_NE(errors[0].find("rank 1: the disk is full"), std::string::npos) << errors[0];
  EXPECT_NE(errors[2].find("rank 1: the disk is full"), std::string::npos) << errors[2];
}

}  // namespace
}  // namespace athanor
