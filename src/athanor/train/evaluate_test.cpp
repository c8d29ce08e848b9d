#include "athanor/train/evaluate.h"

#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "athanor/base/error.h"
#include "athanor/comm/rank_threads.h"
#include "athanor/tokenizer/open_tokenizer.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

// Documents of five tokens each.
class SomeTokens final : public TokenSource {
 public:
  explicit SomeTokens(int64_t count, int64_t vocabulary = 37) {
    for (int64_t i = 0; i < count; ++i) ids_.push_back(static_cast<int32_t>((i * i + 3 * i) % vocabulary));
  }
  int64_t token_count() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t document_count() const override { return (token_count() + 4) / 5; }
  int64_t vocabulary_size() const override { return 37; }
  uint32_t identity() const override { return 1; }
  void read(int64_t first, std::span<int32_t> out) const override {
    std::copy_n(ids_.begin() + first, out.size(), out.begin());
  }
  Document document_at(int64_t position) const override { return document(position / 5); }
  Document document(int64_t number) const override {
    return {number, number * 5, std::min(token_count(), number * 5 + 5)};
  }
  TokenRange unlearned_in(TokenRange range) const override {
    for (const TokenRange& marked : unlearned) {
      const TokenRange part{std::max(range.begin, marked.begin), std::min(range.end, marked.end)};
      if (part.size() > 0) return part;
    }
    return {range.end, range.end};
  }
  int32_t id(int64_t at) const { return ids_[static_cast<size_t>(at)]; }

  std::vector<TokenRange> unlearned;

 private:
  std::vector<int32_t> ids_;
};

class EvaluateTest : public testing::Test {
 protected:
  std::unique_ptr<Engine> engine_of(int64_t rows) {
    EngineOptions options = tiny_options("gpt2");
    options.kernels = KernelSet::reference;
    options.compile.precision = Precision::fp64;
    options.model.initial_deviation = 0.3;
    options.micro_batch_counts.clear();
    options.validation_micro_batch = rows;
    return make_engine(options);
  }

  // The loss of token `label` behind `context` tokens, by itself.
  double loss_of(Engine& engine, const SomeTokens& tokens, int64_t label, int64_t context) {
    Batch batch = tiny_batch(engine.options(), 0);
    batch.samples = 1;
    std::fill(batch.labels.begin(), batch.labels.end(), ignored_label);
    for (int64_t i = 0; i < context; ++i)
      batch.token_ids[static_cast<size_t>(i)] = tokens.id(label - context + i);
    batch.labels[static_cast<size_t>(context - 1)] = tokens.id(label);
    return engine.evaluate(batch).loss_sum;
  }
};

// Windows of eight; the last is shorter. Every token but the first is scored once, behind the stated context,
// and sums are divided by all tokens, whatever the number of windows in a batch.
TEST_F(EvaluateTest, ScoresEachTokenOnce_P112_OverAllTokens) {
  const auto single = engine_of(1);
  for (const int64_t count : {2, 3, 8, 9, 10, 17, 30}) {
    const SomeTokens tokens(count);
    for (const int64_t stride : {0, 1, 3, 8}) {
      double expected = 0;
      for (int64_t label = 1; label < count; ++label) {
        const int64_t step = stride == 0 ? 8 : stride;
        const int64_t context = label <= 8 ? label : 8 - step + (label - 9) % step + 1;
        expected += loss_of(*single, tokens, label, context);
      }
      for (const int64_t rows : {1, 2, 5}) {
        const Scores scores = evaluate(*engine_of(rows), tokens, {.stride = stride}, nullptr);
        EXPECT_EQ(scores.tokens, count - 1) << stride;
        EXPECT_NEAR(scores.loss(), expected / static_cast<double>(count - 1), 1e-12 * scores.loss())
            << count << " " << stride << " " << rows;
        EXPECT_NEAR(scores.perplexity(), std::exp(scores.loss()), 1e-9);
        EXPECT_TRUE(std::isnan(scores.bits_per_byte()));
      }
    }
  }
}

TEST_F(EvaluateTest, GivesTheSameBits_P113_EveryTime) {
  const SomeTokens tokens(40);
  const auto engine = engine_of(3);
  const double first = evaluate(*engine, tokens, {.stride = 5}, nullptr).loss_sum;
  EXPECT_EQ(evaluate(*engine, tokens, {.stride = 5}, nullptr).loss_sum, first);
  EXPECT_NE(evaluate(*engine, tokens, {.stride = 5, .max_tokens = 39}, nullptr).loss_sum, first);
  EXPECT_EQ(evaluate(*engine, tokens, {.stride = 5, .max_tokens = 1000}, nullptr).loss_sum, first);
  // A range is what it would be by itself.
  EXPECT_EQ(evaluate(*engine, tokens, {.stride = 5, .range = {0, 17}}, nullptr).loss_sum,
            evaluate(*engine, SomeTokens(17), {.stride = 5}, nullptr).loss_sum);
  EXPECT_EQ(evaluate(*engine, tokens, {.range = {37, 40}}, nullptr).tokens, 2);
}

TEST_F(EvaluateTest, CountsTheBytesOfWhatItScores) {
  EngineOptions options = tiny_options("gpt2");
  options.model.vocabulary = 257;
  options.micro_batch_counts.clear();
  options.validation_micro_batch = 2;
  const auto engine = make_engine(options);
  const auto bytes = open_tokenizer(system_files(), "bytes");
  const Scores scores = evaluate(*engine, SomeTokens(20, 250), {}, bytes.get());
  EXPECT_EQ(scores.bytes, 19);
  EXPECT_NEAR(scores.bits_per_byte(), scores.loss() / std::log(2.0), 1e-9);
  EXPECT_TRUE(std::isnan(Scores{.loss_sum = 1, .tokens = 1, .bytes = 0}.bits_per_byte()));
}

TEST_F(EvaluateTest, LeavesOutWhatIsNotToBeLearned) {
  SomeTokens tokens(30);
  tokens.unlearned = {{0, 3}, {7, 10}, {12, 13}, {20, 30}};
  const auto engine = engine_of(2), single = engine_of(1);
  double expected = 0;
  int64_t count = 0;
  for (int64_t label = 1; label < 30; ++label) {
    const bool out = label < 3 || (label >= 7 && label < 10) || label == 12 || label >= 20;
    if (out) continue;
    ++count;
    expected += loss_of(*single, tokens, label, (label - 1) % 8 + 1);
  }
  const Scores scores = evaluate(*engine, tokens, {}, nullptr);
  EXPECT_EQ(scores.tokens, count);
  EXPECT_NEAR(scores.loss_sum, expected, 1e-12 * expected);
}

// With masks, a change in one document leaves the losses of others as they are.
TEST_F(EvaluateTest, DocumentsAreIsolated_P115_WhereTheModelSaysSo) {
  const SomeTokens tokens(9);
  const auto engine = engine_of(1);
  const EvaluateOptions masked{.reset_positions = true, .mask_documents = true};
  // The second document's tokens 6, 7, 8 follow its own alone.
  double expected = 0;
  for (int64_t label = 1; label < 6; ++label) expected += loss_of(*engine, tokens, label, label);
  for (int64_t label = 6; label < 9; ++label) expected += loss_of(*engine, tokens, label, label - 5);
  EXPECT_NEAR(evaluate(*engine, tokens, masked, nullptr).loss_sum, expected, 1e-12 * expected);
  EXPECT_GT(std::abs(evaluate(*engine, tokens, {}, nullptr).loss_sum - expected), 1e-3);
}

TEST_F(EvaluateTest, RefusesWhatCannotBeScored) {
  const auto engine = engine_of(2);
  EXPECT_THROW(evaluate(*engine, SomeTokens(1), {}, nullptr), Error);
  EXPECT_THROW(evaluate(*engine, SomeTokens(30), {.max_tokens = 1}, nullptr), Error);
  EXPECT_THROW(evaluate(*engine, SomeTokens(30, 41), {}, nullptr), Error);
}

TEST_F(EvaluateTest, EndsWhenTold) {
  const Scores scores = evaluate(*engine_of(1), SomeTokens(40), {}, nullptr,
                                 [](int64_t done, int64_t total) { return done < 16 && total == 39; });
  EXPECT_EQ(scores.tokens, 16);
}

// Windows go to ranks with samples of their own, weights may be cut: every rank has the scores of one.
TEST_F(EvaluateTest, RanksShareTheWindows) {
  const SomeTokens tokens(61);
  const auto one = engine_of(2);
  const Scores expected = evaluate(*one, tokens, {.stride = 3}, nullptr);
  for (const auto& [shard, context, tensor, zero] :
       {std::array{3, 1, 1, 0}, std::array{2, 1, 2, 0}, std::array{1, 2, 1, 0}, std::array{3, 1, 1, 3},
        std::array{2, 2, 2, 3}}) {
    const auto errors = run_rank_threads(shard * context * tensor, [&](Communicator& communicator) {
      EngineOptions options = one->options();
      options.compile.layout.mesh.sizes = {1, 1, shard, context, tensor, 1, 1};
      options.compile.zero_stage = zero;
      options.communicator = &communicator;
      Engine engine(options);
      engine.allocate();
      engine.initialise();
      int told = 0;
      const auto progress = [&](int64_t, int64_t total) {
        EXPECT_EQ(total, 60);
        ++told;
        return true;
      };
      const Scores scores = evaluate(engine, tokens, {.stride = 3}, nullptr, progress);
      EXPECT_EQ(scores.tokens, expected.tokens);
      EXPECT_NEAR(scores.loss_sum, expected.loss_sum, 1e-12 * expected.loss_sum);
      EXPECT_GE(told, 1);
      // One rank has seen enough: all stop.
      const Scores some = evaluate(engine, tokens, {.stride = 3}, nullptr, [&](int64_t, int64_t) {
        return communicator.rank() != communicator.ranks() - 1;
      });
      EXPECT_LT(some.tokens, expected.tokens);
    });
    for (const std::string& error : errors) EXPECT_EQ(error, "");
  }
}

// A source that remembers what is read of it.
class WatchedTokens final : public TokenSource {
 public:
  explicit WatchedTokens(const TokenSource& source) : source_(source) {}
  int64_t token_count() const override { return source_.token_count(); }
  int64_t document_count() const override { return source_.document_count(); }
  int64_t vocabulary_size() const override { return source_.vocabulary_size(); }
  uint32_t identity() const override { return source_.identity(); }
  void read(int64_t first, std::span<int32_t> out) const override {
    read_tokens += static_cast<int64_t>(out.size());
    source_.read(first, out);
  }
  Document document_at(int64_t position) const override { return source_.document_at(position); }
  Document document(int64_t number) const override { return source_.document(number); }
  mutable int64_t read_tokens = 0;

 private:
  const TokenSource& source_;
};

// Ranks read the windows that are theirs and no others, and count each scored token's bytes once.
TEST_F(EvaluateTest, RanksReadTheirOwnWindows) {
  EngineOptions options = tiny_options("gpt2");
  options.model.vocabulary = 257;
  options.micro_batch_counts.clear();
  options.validation_micro_batch = 2;
  const SomeTokens tokens(8 * 12 + 1, 250);
  const auto bytes = open_tokenizer(system_files(), "bytes");
  for (const std::string& error : run_rank_threads(6, [&](Communicator& communicator) {
         EngineOptions own = options;
         own.compile.layout.mesh.sizes = {1, 1, 3, 1, 2, 1, 1};
         own.communicator = &communicator;
         const auto engine = make_engine(own);
         const WatchedTokens watched(tokens);
         const Scores scores = evaluate(*engine, watched, {}, bytes.get());
         EXPECT_EQ(scores.bytes, 8 * 12);
         EXPECT_EQ(watched.read_tokens, 9 * 12 / 3);  // a window's labels end one token further
       }))
    EXPECT_EQ(error, "");
}

}  // namespace
}  // namespace athanor
