#include "athanor/comm/wire.h"

#include <gtest/gtest.h>

#include "athanor/base/philox.h"

namespace athanor {
namespace {

Frame example() {
  Frame frame;
  frame.type = FrameType::data;
  frame.payload_bytes = 1000;
  frame.payload_checksum = 0x12345678;
  frame.message = {-5, 77, 1ULL << 40, 3, 9, 5000};
  frame.number = 12;
  return frame;
}

TEST(Wire, FramesAreReadAsTheyWereWritten) {
  const auto frame = decode_frame(encode_frame(example()));
  ASSERT_TRUE(frame);
  EXPECT_EQ(frame->message, example().message);
  EXPECT_EQ(frame->payload_bytes, 1000U);
  EXPECT_EQ(frame->payload_checksum, 0x12345678U);
  EXPECT_EQ(frame->number, 12U);
}

TEST(Wire, EveryChangedBitOfAFrameIsSeen) {
  for (size_t bit = 0; bit < Frame::header_bytes * 8; ++bit) {
    FrameHeader bytes = encode_frame(example());
    bytes[bit / 8] ^= std::byte{static_cast<unsigned char>(1U << (bit % 8))};
    EXPECT_FALSE(decode_frame(bytes)) << bit;
  }
}

TEST(Wire, ImpossibleFramesAreRefused) {
  const auto refused = [](auto change) {
    Frame frame = example();
    change(frame);
    return !decode_frame(encode_frame(frame)).has_value();
  };
  EXPECT_TRUE(refused([](Frame& frame) { frame.payload_bytes = Frame::most_data + 1; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.payload_bytes = 0; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.payload_bytes = 5001; }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.type = static_cast<FrameType>(0); }));
  EXPECT_TRUE(refused([](Frame& frame) { frame.type = static_cast<FrameType>(7); }));
  EXPECT_TRUE(refused([](Frame& frame) {
    frame.type = FrameType::failure;
    frame.payload_bytes = Frame::most_control + 1;
  }));
}

TEST(Wire, StatusesAreReadAsTheyWereWritten) {
  RankStatus status;
  status.begun = 10;
  status.completed = 9;
  status.last = {{3, CollectiveKind::all_gather, 5}, {-1, CollectiveKind::send, 1ULL << 50}};
  status.phase = "loading data";
  status.failure = "rank 2: out of paper";
  status.awaited = 1 << 20;
  const auto read = decode_status(encode_status(status));
  ASSERT_TRUE(read);
  EXPECT_EQ(read->begun, 10U);
  EXPECT_EQ(read->completed, 9U);
  ASSERT_EQ(read->last.size(), 2U);
  EXPECT_EQ(read->last[1].sequence, 1ULL << 50);
  EXPECT_EQ(read->last[0].kind, CollectiveKind::all_gather);
  EXPECT_EQ(read->phase, status.phase);
  EXPECT_EQ(read->failure, status.failure);
  EXPECT_EQ(read->awaited, 1 << 20);
  EXPECT_EQ(decode_status(encode_status(RankStatus()))->awaited, -1);
}

TEST(Wire, AnyBytesAreAStatusOrNone) {
  for (uint64_t seed = 0; seed < 5000; ++seed) {
    std::string bytes(mix64(seed) % 200, '\0');
    for (size_t i = 0; i < bytes.size(); ++i)
      bytes[i] = static_cast<char>(i % 8 == 0 || seed % 2 == 0 ? mix64(seed * 1000 + i) % 20 : 0);
    const auto status = decode_status(bytes);
    if (!status) continue;
    EXPECT_LE(status->last.size() * 16 + status->phase.size() + 36, bytes.size());
  }
}

TEST(Wire, AHelloProvesTheSecretForOneChallenge) {
  const Secret secret("sesame");
  const Challenge challenge = make_challenge(random_nonce());
  const Introduction introduction{3, 4, 9};
  const auto hello = answer_challenge(secret, challenge, introduction, random_nonce());
  ASSERT_TRUE(hello);
  EXPECT_EQ(check_hello(secret, challenge, *hello), introduction);
  EXPECT_FALSE(check_hello(Secret("barley"), challenge, *hello));
  EXPECT_FALSE(check_hello(secret, make_challenge(random_nonce()), *hello));
  for (size_t byte = 8; byte < hello->size(); ++byte) {
    Hello changed = *hello;
    changed[byte] ^= std::byte{1};
    EXPECT_FALSE(check_hello(secret, challenge, changed)) << byte;
  }
  Challenge other = challenge;
  other[0] ^= std::byte{1};
  EXPECT_FALSE(answer_challenge(secret, other, introduction, random_nonce()));
  EXPECT_NE(make_welcome(secret, challenge, *hello), make_welcome(Secret("barley"), challenge, *hello));
}

}  // namespace
}  // namespace athanor
