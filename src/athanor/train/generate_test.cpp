#include "athanor/train/generate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

std::vector<double> frequencies(const std::vector<double>& logits, const GenerateOptions& options,
                                int64_t draws) {
  std::vector<double> result(logits.size());
  for (int64_t draw = 0; draw < draws; ++draw) {
    const int32_t token = draw_token(logits, options, draw);
    EXPECT_GE(token, 0);
    EXPECT_LT(token, static_cast<int32_t>(logits.size()));
    result[static_cast<size_t>(token)] += 1 / static_cast<double>(draws);
  }
  return result;
}

TEST(DrawToken, FollowsTheSoftmax) {
  const std::vector<double> logits = {std::log(0.1), std::log(0.5), std::log(0.15), std::log(0.25)};
  const auto plain = frequencies(logits, {.temperature = 1}, 40'000);
  // 0.01 is four standard deviations of 40000 draws.
  EXPECT_NEAR(plain[0], 0.1, 0.01);
  EXPECT_NEAR(plain[1], 0.5, 0.01);
  EXPECT_NEAR(plain[2], 0.15, 0.01);
  EXPECT_NEAR(plain[3], 0.25, 0.01);
  // Temperature a half squares the odds: 1, 25, 2.25, 6.25 of 34.5.
  const auto cold = frequencies(logits, {.temperature = 0.5}, 40'000);
  EXPECT_NEAR(cold[0], 1 / 34.5, 0.01);
  EXPECT_NEAR(cold[1], 25 / 34.5, 0.01);
  // Among the two likeliest.
  const auto two = frequencies(logits, {.temperature = 1, .top_k = 2}, 40'000);
  EXPECT_EQ(two[0] + two[2], 0);
  EXPECT_NEAR(two[1], 2.0 / 3, 0.01);
}

TEST(DrawToken, WithoutChanceTakesTheLikeliestAndTheFirstOfEquals) {
  EXPECT_EQ(draw_token({1, 3, 2, 3}, {.temperature = 0}, 0), 1);
  EXPECT_EQ(draw_token({1, 3, 2, 3}, {.temperature = 1, .top_k = 1}, 7), 1);
  EXPECT_EQ(draw_token({5}, {.temperature = 1}, 0), 0);
}

TEST(DrawToken, ExtremeLogitsAreNoProblem) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (int64_t draw = 0; draw < 100; ++draw)
    EXPECT_EQ(draw_token({1e300, -1e300, 0}, {.temperature = 1}, draw), 0);
  const auto masked = frequencies({-infinity, 0, -infinity, 0}, {.temperature = 1}, 2000);
  EXPECT_EQ(masked[0] + masked[2], 0);
  EXPECT_NEAR(masked[1], 0.5, 0.05);
  EXPECT_EQ(frequencies({1, 2, 3}, {.temperature = 1, .top_k = 100}, 1000).size(), 3u);
}

TEST(DrawToken, IsAFunctionOfSeedAndNumber) {
  const std::vector<double> logits(50, 0.0);
  std::vector<int32_t> first, again, other;
  for (int64_t draw = 0; draw < 20; ++draw) {
    first.push_back(draw_token(logits, {.temperature = 1, .seed = 1}, draw));
    again.push_back(draw_token(logits, {.temperature = 1, .seed = 1}, draw));
    other.push_back(draw_token(logits, {.temperature = 1, .seed = 2}, draw));
  }
  EXPECT_EQ(first, again);
  EXPECT_NE(first, other);
}

class GenerateTest : public testing::TestWithParam<const char*> {
 protected:
  GenerateTest() {
    EngineOptions options = tiny_options(GetParam());
    options.predict = true;
    engine = make_engine(options);
  }
  std::vector<int32_t> written(const std::vector<int32_t>& prompt, const GenerateOptions& options,
                               int64_t vocabulary = 37) {
    std::vector<int32_t> tokens;
    generate(*engine, prompt, vocabulary, options, [&](int32_t token) {
      tokens.push_back(token);
      return true;
    });
    return tokens;
  }
  std::unique_ptr<Engine> engine;
};

// Longer than the model's eight positions.
TEST_P(GenerateTest, WritesAsManyTokensAsAsked) {
  const auto text = written({1, 2, 3}, {.length = 20, .temperature = 1});
  EXPECT_EQ(text.size(), 20u);
  EXPECT_EQ(text, written({1, 2, 3}, {.length = 20, .temperature = 1}));
  EXPECT_EQ(written({1}, {.length = 0}).size(), 0u);
}

// Each token is drawn from the prediction behind the latest eight.
TEST_P(GenerateTest, EachTokenFollowsFromThoseBefore) {
  const std::vector<int32_t> prompt = {4, 9, 1, 30, 2, 2, 7, 8, 11, 5};
  const auto text = written(prompt, {.length = 5, .temperature = 0});
  std::vector<int32_t> all = prompt;
  all.insert(all.end(), text.begin(), text.end());
  for (size_t i = 0; i < text.size(); ++i) {
    Batch batch = tiny_batch(engine->options(), 0);
    batch.samples = 1;
    const auto latest = all.begin() + static_cast<int64_t>(prompt.size() + i) - 8;
    batch.token_ids.assign(latest, latest + 8);
    const std::vector<double> logits = engine->predict(batch, 7);
    EXPECT_EQ(text[i], std::max_element(logits.begin(), logits.end()) - logits.begin());
  }
}

TEST_P(GenerateTest, WhatComesAfterDoesNotCount) {
  Batch one = tiny_batch(engine->options(), 0), other = one;
  one.samples = other.samples = 1;
  for (size_t i = 3; i < 8; ++i) other.token_ids[i] = (other.token_ids[i] + 1) % 37;
  EXPECT_TRUE(engine->predict(one, 2) == engine->predict(other, 2));
  EXPECT_FALSE(engine->predict(one, 3) == engine->predict(other, 3));
}

TEST_P(GenerateTest, KeepsToTheVocabularyAndStopsWhenTold) {
  for (const int32_t token : written({1}, {.length = 200, .temperature = 100}, 5)) EXPECT_LT(token, 5);
  int64_t emitted = 0;
  generate(*engine, {1}, 37, {.length = 50}, [&](int32_t) { return ++emitted < 3; });
  EXPECT_EQ(emitted, 3);
}

INSTANTIATE_TEST_SUITE_P(Families, GenerateTest, testing::Values("gpt2", "llama"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace athanor
