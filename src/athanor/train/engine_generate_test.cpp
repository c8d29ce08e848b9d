#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "athanor/base/error.h"
#include "athanor/comm/rank_threads.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

constexpr int64_t longest = 24;

std::vector<int32_t> some_tokens(int64_t count, int64_t number = 0) {
  std::vector<int32_t> tokens;
  for (int64_t i = 0; i < count; ++i)
    tokens.push_back(static_cast<int32_t>((i * i * 7 + 5 * i + 11 * number) % 37));
  return tokens;
}

std::vector<double> log_softmax(std::span<const double> logits) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const double logit : logits) sum += std::exp(logit - most);
  std::vector<double> result;
  for (const double logit : logits) result.push_back(logit - most - std::log(sum));
  return result;
}

struct Variant {
  const char* name;
  void (*change)(ModelConfig&);
};
const Variant variants[] = {
    {"plain", [](ModelConfig&) {}},
    {"window", [](ModelConfig& c) { c.window = 3; }},
    {"windows", [](ModelConfig& c) { c.window_pattern = {5, 0}; }},
    {"parallel", [](ModelConfig& c) { c.parallel_block = true; }},
    {"soft_cap", [](ModelConfig& c) { c.logit_soft_cap = 0.5; }},
    {"query_key_norm", [](ModelConfig& c) { c.query_key_norm = true; }},
    {"one_key_head", [](ModelConfig& c) { c.key_value_heads = 1; }},
    {"head_dim", [](ModelConfig& c) { c.head_dim = 6; }},
    {"untied", [](ModelConfig& c) { c.tied_head = !c.tied_head; }},
    {"no_bias", [](ModelConfig& c) { c.bias = !c.bias; }},
    {"llama3_rope",
     [](ModelConfig& c) {
       c.positions = PositionKind::rotary;
       c.rope_factor = 8;
       c.rope_original = 16;
     }},
    {"everything",
     [](ModelConfig& c) {
       c.window_pattern = {0, 4};
       c.parallel_block = true;
       c.logit_soft_cap = 0.7;
       c.query_key_norm = true;
       c.key_value_heads = 2;
     }},
};

EngineOptions options_of(const char* family, const Variant& variant) {
  EngineOptions options = tiny_options(family);
  options.model.maximum_positions = longest;
  variant.change(options.model);
  options.model.initial_deviation = 0.3;  // so that attention and logits are far from even
  options.sequence_length = longest;
  options.micro_batch_counts.clear();
  return options;
}

class CachedForward : public testing::TestWithParam<std::tuple<const char*, Variant>> {
 protected:
  EngineOptions options = options_of(std::get<0>(GetParam()), std::get<1>(GetParam()));
};

// The logarithms of all probabilities behind tokens [0, count), from the program that computes losses.
std::vector<double> by_losses(Engine& engine, const std::vector<int32_t>& tokens, int64_t count) {
  std::vector<double> result;
  Batch batch = tiny_batch(engine.options(), 0);
  std::copy(tokens.begin(), tokens.end(), batch.token_ids.begin());
  for (int32_t label = 0; label < 37; ++label) {
    std::fill(batch.labels.begin(), batch.labels.end(), ignored_label);
    batch.labels[static_cast<size_t>(count - 1)] = label;
    result.push_back(-engine.evaluate(batch).loss_sum);
  }
  return result;
}

void expect_near(const std::vector<double>& expected, std::span<const double> logits, double tolerance) {
  const std::vector<double> actual = log_softmax(logits);
  ASSERT_EQ(actual.size(), expected.size());
  double largest = 0;
  for (const double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < expected.size(); ++i) ASSERT_NEAR(actual[i], expected[i], tolerance * largest) << i;
}

// Whatever the split into prompt, parts of it and single tokens.
TEST_P(CachedForward, GivesWhatTheWholeSequenceGives) {
  options.kernels = KernelSet::reference;
  options.compile.precision = Precision::fp64;
  options.micro_batch = options.validation_micro_batch = 1;
  options.generation = {3, longest, {2, 5}};
  const auto engine = make_engine(options);
  const std::vector<int32_t> tokens = some_tokens(longest);
  std::vector<std::vector<double>> expected;
  for (int64_t count = 1; count <= longest; ++count) expected.push_back(by_losses(*engine, tokens, count));

  const auto all = std::span<const int32_t>(tokens);
  for (const size_t prompt : std::initializer_list<size_t>{1, 2, 7, 17, 24}) {
    SCOPED_TRACE(prompt);
    const int64_t row = static_cast<int64_t>(prompt % 3);
    const auto logits = engine->prefill(row, 0, all.first(prompt));
    ASSERT_NO_FATAL_FAILURE(expect_near(expected[prompt - 1], logits, 1e-12));
    size_t held = prompt;
    while (held < tokens.size()) {
      SCOPED_TRACE(held);
      if (held % 6 == 5) {  // a few tokens at once in between
        const size_t count = std::min<size_t>(3, tokens.size() - held);
        const auto more = engine->prefill(row, static_cast<int64_t>(held), all.subspan(held, count));
        held += count;
        ASSERT_NO_FATAL_FAILURE(expect_near(expected[held - 1], more, 1e-12));
        continue;
      }
      std::vector<int32_t> next(3, 0), positions(3, -1);
      next[static_cast<size_t>(row)] = tokens[held];
      positions[static_cast<size_t>(row)] = static_cast<int32_t>(held);
      engine->decode(next, positions);
      ++held;
      ASSERT_NO_FATAL_FAILURE(expect_near(expected[held - 1], engine->logits(row), 1e-12));
    }
  }
}

// The same bits alone and among others, on one thread and on three.
TEST_P(CachedForward, RowsAreIndependent) {
  for (const Precision precision : {Precision::fp32, Precision::bf16, Precision::fp16}) {
    options.compile.precision = precision;
    const auto logits_of = [&](int64_t rows, int64_t row, int threads) {
      options.threads = threads;
      options.generation = {rows, longest, {4, 8}};
      const auto engine = make_engine(options);
      for (int64_t other = 0; other < rows; ++other) {
        if (other == row) continue;
        engine->prefill(other, 0, some_tokens(3 + 2 * other, other + 1));
      }
      const std::vector<int32_t> tokens = some_tokens(longest);
      std::vector<double> result;
      const auto keep = [&](std::span<const double> logits) {
        result.insert(result.end(), logits.begin(), logits.end());
      };
      keep(engine->prefill(row, 0, std::span(tokens).first(6)));
      for (int32_t held = 6; held < 12; ++held) {
        std::vector<int32_t> next(static_cast<size_t>(rows), 1), positions(static_cast<size_t>(rows), -1);
        for (int32_t other = 0; other < rows; ++other)
          positions[static_cast<size_t>(other)] = other % 2 == 0 ? 3 + 2 * other + held - 6 : -1;
        next[static_cast<size_t>(row)] = tokens[static_cast<size_t>(held)];
        positions[static_cast<size_t>(row)] = held;
        engine->decode(next, positions);
        keep(engine->logits(row));
      }
      return result;
    };
    const std::vector<double> alone = logits_of(1, 0, 1);
    EXPECT_EQ(alone, logits_of(1, 0, 3));
    EXPECT_EQ(alone, logits_of(3, 1, 3));
    EXPECT_EQ(alone, logits_of(7, 6, 1));
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CachedForward,
                         testing::Combine(testing::Values("gpt2", "llama"), testing::ValuesIn(variants)),
                         [](const auto& parameter) {
                           return std::string(std::get<0>(parameter.param)) + "_" +
                                  std::get<1>(parameter.param).name;
                         });

// Ranks with samples of their own go each at their own pace, ranks of axis `tensor` together.
TEST(GenerationOnRanks, GivesWhatOneRankGives) {
  for (const char* family : {"gpt2", "llama"}) {
    SCOPED_TRACE(family);
    EngineOptions options = options_of(family, variants[11]);
    options.kernels = KernelSet::reference;
    options.compile.precision = Precision::fp64;
    options.generation = {2, longest, {3, 5}};
    // Of the two sequences of data rank `number`: logits behind every token.
    const auto logits_of = [](Engine& engine, int64_t number) {
      std::vector<double> result;
      const auto keep = [&](std::span<const double> logits) {
        result.insert(result.end(), logits.begin(), logits.end());
      };
      std::vector<std::vector<int32_t>> sequences;
      const int64_t prompt = 4 + 3 * number;
      for (int64_t row = 0; row < 2; ++row) {
        sequences.push_back(some_tokens(longest, 2 * number + row));
        keep(engine.prefill(row, 0, std::span(sequences.back()).first(static_cast<size_t>(prompt))));
      }
      for (int64_t held = prompt; held < longest - 5 * number; ++held) {
        const auto at = static_cast<size_t>(held);
        engine.decode(std::vector<int32_t>{sequences[0][at], sequences[1][at]},
                      std::vector<int32_t>(2, static_cast<int32_t>(held)));
        keep(engine.logits(0));
        keep(engine.logits(1));
      }
      return result;
    };
    std::vector<std::vector<double>> expected;
    const auto one = make_engine(options);
    for (int64_t number = 0; number < 3; ++number) expected.push_back(logits_of(*one, number));
    for (const auto& [replica, shard, tensor] :
         {std::array{1, 3, 1}, std::array{1, 1, 3}, std::array{1, 2, 2}, std::array{2, 1, 2},
          std::array{1, 3, 2}}) {
      for (const std::string& error :
           run_rank_threads(replica * shard * tensor, [&](Communicator& communicator) {
             EngineOptions own = options;
             own.compile.layout.mesh.sizes = {1, replica, shard, 1, tensor, 1, 1};
             own.compile.layout.sequence_parallel = true;  // is for programs that know whole sequences
             own.compile.zero_stage = 3;                   // so is this
             own.communicator = &communicator;
             const auto engine = make_engine(own);
             const int64_t number = communicator.rank() / tensor;
             const std::vector<double> actual = logits_of(*engine, number);
             const std::vector<double>& whole = expected[static_cast<size_t>(number)];
             ASSERT_EQ(actual.size(), whole.size());
             for (size_t i = 0; i < whole.size(); ++i) ASSERT_NEAR(actual[i], whole[i], 1e-12) << i;
           }))
        EXPECT_EQ(error, "");
    }
  }
}

TEST(GenerationOnRanks, SequencesAreNotCut) {
  EngineOptions options = options_of("gpt2", variants[0]);
  options.generation = {1, longest, {4}};
  options.compile.layout.mesh.sizes[static_cast<size_t>(Axis::context)] = 2;
  try {
    const Engine engine(options);
    FAIL() << "compiled";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_NE(error.message().find("mesh.context is 2"), std::string::npos) << error.what();
  }
}

// An engine that only generates keeps one copy of the weights, in the type it computes in, and the cache.
TEST(GenerationEngine, PlansWeightsAndCacheAlone) {
  EngineOptions options = options_of("llama", variants[2]);
  options.compile.precision = Precision::bf16;
  options.generation = {3, longest, {4}};
  const Engine engine(options);
  int64_t weights = 0;
  for (const BucketTable& table : engine.programs().tables) weights += table.length() * 2;
  // Two key heads of four elements; the windowed layer keeps 5 + 4 - 1 tokens, the other all 24.
  const int64_t cache = 2 * 3 * 2 * 4 * (8 + 24) * 2;
  EXPECT_GE(engine.programs().persistent_bytes, weights + cache);
  EXPECT_LE(engine.programs().persistent_bytes, weights + cache + 64 * 12);
}

TEST(GenerationEngine, HasTheWeightsOfATrainingEngineRoundedOnce) {
  EngineOptions options = options_of("gpt2", variants[0]);
  options.micro_batch_counts = {1};
  const auto trained = make_engine(options);
  options.micro_batch_counts.clear();
  options.generation = {1, longest, {4}};
  options.compile.precision = Precision::bf16;
  const auto engine = make_engine(options);
  const auto wide = trained->weights(), narrow = engine->weights();
  ASSERT_EQ(wide.size(), narrow.size());
  for (size_t i = 0; i < wide.size(); ++i) {
    ASSERT_EQ(wide[i].name, narrow[i].name);
    ASSERT_EQ(narrow[i].dtype, DType::bf16);
    const auto values = floats(wide[i]);
    const auto* rounded = reinterpret_cast<const BFloat16*>(narrow[i].bytes.data());
    for (size_t e = 0; e < values.size(); ++e)
      ASSERT_EQ(static_cast<float>(rounded[e]), static_cast<float>(BFloat16(values[e]))) << wide[i].name;
  }
}

TEST(GenerationEngine, TooLittleMemoryIsToldInTermsOfGeneration) {
  EngineOptions options;
  options.micro_batch_counts.clear();
  options.generation = GenerationShape::of(int64_t{1} << 20, 1024);
  Engine engine(options);
  try {
    engine.allocate();
    FAIL() << "allocated";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_NE(error.hint().find("--context"), std::string::npos) << error.what();
    EXPECT_EQ(error.hint().find("train."), std::string::npos) << error.what();
  }
}

}  // namespace
}  // namespace athanor
