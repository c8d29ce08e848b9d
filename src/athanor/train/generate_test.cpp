#include "athanor/train/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

using Tokens = std::vector<int32_t>;

class GenerateTest : public testing::TestWithParam<const char*> {
 protected:
  GenerateTest() {
    options = tiny_options(GetParam());
    options.model.initial_deviation = 0.3;
    options.micro_batch_counts.clear();
    options.generation = {1, 8, {2, 4}};
    engine = make_engine(options);
  }
  std::vector<Tokens> written(const std::vector<Tokens>& prompts, const GenerateOptions& generate_options) {
    std::vector<Tokens> tokens(prompts.size());
    generate(*engine, prompts, generate_options, [&](size_t prompt, int32_t token) {
      tokens.at(prompt).push_back(token);
      return true;
    });
    return tokens;
  }
  EngineOptions options;
  std::unique_ptr<Engine> engine;
};

// Longer than the model's eight positions.
TEST_P(GenerateTest, WritesAsManyTokensAsAsked) {
  const GenerateOptions twenty{.length = 20, .sampling = {.temperature = 1}};
  const auto text = written({{1, 2, 3}}, twenty);
  EXPECT_EQ(text[0].size(), 20u);
  EXPECT_EQ(text, written({{1, 2, 3}}, twenty));
  EXPECT_EQ(written({Tokens{1}}, {.length = 0})[0].size(), 0u);
  EXPECT_TRUE(written({}, twenty).empty());
}

// Each token is the likeliest behind what the row holds: all before it, and once the row is full the latest
// four, which grow to eight again.
TEST_P(GenerateTest, EachTokenFollowsFromThoseBefore) {
  for (const Tokens& prompt : {Tokens{4, 9, 1}, Tokens{4, 9, 1, 30, 2, 2, 7, 8, 11, 5}}) {
    const Tokens text = written({prompt}, {.length = 15, .sampling = {.temperature = 0}})[0];
    Tokens all = prompt;
    size_t seen = std::min<size_t>(8, prompt.size());
    for (const int32_t token : text) {
      const auto logits = engine->prefill(0, 0, std::span<const int32_t>(all).last(seen));
      EXPECT_EQ(token, std::max_element(logits.begin(), logits.end()) - logits.begin());
      all.push_back(token);
      seen = seen == 8 ? 4 : seen + 1;
    }
  }
}

TEST_P(GenerateTest, APromptsTokensDependOnNoOther) {
  const std::vector<Tokens> prompts = {{1, 2, 3}, {5}, {6, 6, 6, 6, 6, 6, 6, 6, 6}, {7, 1}, {1, 2, 3}};
  const GenerateOptions twelve{.length = 12, .sampling = {.temperature = 1, .seed = 5}};
  const auto one_by_one = written(prompts, twelve);
  EXPECT_EQ(one_by_one[0], one_by_one[4]);
  EXPECT_NE(one_by_one[0], one_by_one[1]);
  for (const int64_t rows : {2, 5, 8}) {
    options.generation.rows = rows;
    options.threads = 2;
    engine = make_engine(options);
    EXPECT_EQ(written(prompts, twelve), one_by_one) << rows;
  }
  for (size_t i = 0; i < prompts.size(); ++i) EXPECT_EQ(written({prompts[i]}, twelve)[0], one_by_one[i]);
  EXPECT_NE(written({{1, 2, 3}}, {.length = 12, .sampling = {.temperature = 1, .seed = 6}})[0],
            one_by_one[0]);
}

TEST_P(GenerateTest, KeepsToTheVocabularyAndStopsWhenTold) {
  const GenerateOptions hot{.length = 200, .vocabulary = 5, .sampling = {.temperature = 100}};
  const std::vector<Tokens> one{Tokens{1}};
  const auto text = written(one, hot);
  EXPECT_EQ(text[0].size(), 200u);
  for (const int32_t token : text[0]) EXPECT_LT(token, 5);
  int64_t first = 0, second = 0;
  options.generation.rows = 2;
  engine = make_engine(options);
  const std::vector<Tokens> prompts = {{1}, {2}};
  const GenerateReport report = generate(*engine, prompts, {.length = 50}, [&](size_t prompt, int32_t) {
    return ++(prompt == 0 ? first : second) < (prompt == 0 ? 3 : 10);
  });
  EXPECT_EQ(first, 3);
  EXPECT_EQ(second, 10);
  EXPECT_EQ(report.tokens, 13);
  EXPECT_EQ(report.prompt_tokens, 2);
}

TEST(ContextLimit, IsTheTrainedLengthWherePositionsAreLearned) {
  const ModelConfig learned = tiny_model("gpt2"), rotary = tiny_model("llama");
  EXPECT_EQ(context_limit(learned, 5), 5);
  EXPECT_EQ(context_limit(learned, 50), 8);
  EXPECT_EQ(context_limit(learned, 0), 8);
  EXPECT_EQ(context_limit(rotary, 5), 8);
}

INSTANTIATE_TEST_SUITE_P(Families, GenerateTest, testing::Values("gpt2", "llama"),
                         [](const auto& parameter) { return std::string(parameter.param); });

}  // namespace
}  // namespace athanor
