// What labels and documents of a batch do to loss and gradients, in the engine itself.

#include <gtest/gtest.h>

#include "athanor/data/batch.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

// Tokens in memory, documents of given lengths, some of them unlearned.
class Tokens final : public TokenSource {
 public:
  Tokens(std::vector<int32_t> ids, const std::vector<int64_t>& lengths, std::vector<TokenRange> unlearned)
      : ids_(std::move(ids)), unlearned_(std::move(unlearned)) {
    for (const int64_t length : lengths) starts_.push_back(starts_.back() + length);
  }
  int64_t token_count() const override { return static_cast<int64_t>(ids_.size()); }
  int64_t document_count() const override { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t vocabulary_size() const override { return 37; }
  uint32_t identity() const override { return 1; }
  void read(int64_t first, std::span<int32_t> out) const override {
    std::copy_n(ids_.begin() + first, out.size(), out.begin());
  }
  Document document_at(int64_t position) const override {
    int64_t number = 0;
    while (starts_[static_cast<size_t>(number) + 1] <= position) ++number;
    return document(number);
  }
  Document document(int64_t number) const override {
    return {number, starts_[static_cast<size_t>(number)], starts_[static_cast<size_t>(number) + 1]};
  }
  TokenRange unlearned_in(TokenRange range) const override {
    for (const TokenRange& stretch : unlearned_) {
      const TokenRange found{std::max(range.begin, stretch.begin), std::min(range.end, stretch.end)};
      if (found.size() > 0) return found;
    }
    return {range.end, range.end};
  }

 private:
  std::vector<int32_t> ids_;
  std::vector<int64_t> starts_{0};
  std::vector<TokenRange> unlearned_;
};

Batch batch_of(const std::vector<int32_t>& ids, const std::vector<int64_t>& lengths,
               const std::vector<TokenRange>& unlearned, bool packed) {
  const auto tokens = std::make_shared<Tokens>(ids, lengths, unlearned);
  const TokenRange all{0, tokens->token_count()};
  const SamplerOptions options{.sequence_length = 8, .shuffle = false};
  const SampleSet set = packed ? SampleSet::packed(tokens, all, options)
                               : SampleSet(tokens, Sampler(all, options), BatchOptions{});
  return set.cut(std::vector<int64_t>{0, no_sample});
}

struct Result {
  double valid_tokens = 0, loss_sum = 0;
  std::map<std::string, std::vector<std::byte>> gradients;
};

Result step(const Batch& batch, const std::string& family, KernelSet kernels) {
  EngineOptions options = tiny_options(family);
  options.kernels = kernels;
  const auto engine = make_engine(options);
  const StepResult result = engine->train_step({&batch, 1}, 0, 0, 0.0);
  return {result.valid_tokens, result.loss_sum, bytes_of(engine->gradients())};
}

// What is not learned has no part in loss and gradients: the labels of the tokens at the end may be any.
TEST(LossMask, UnlearnedTokensHaveNoGradient) {
  for (const std::string family : {"gpt2", "llama"}) {
    // Tokens 1 to 3 are the answer; 4 to 8 come behind it and are not learned.
    const std::vector<TokenRange> unlearned = {{0, 1}, {4, 9}};
    const Result first =
        step(batch_of({1, 2, 3, 4, 5, 6, 7, 8, 9}, {9}, unlearned, false), family, KernelSet::cpu);
    EXPECT_EQ(first.valid_tokens, 3);
    EXPECT_GT(first.loss_sum, 0);
    Batch other = batch_of({1, 2, 3, 4, 5, 6, 7, 8, 20}, {9}, unlearned, false);
    const Result second = step(other, family, KernelSet::cpu);
    EXPECT_EQ(second.loss_sum, first.loss_sum);
    EXPECT_EQ(changed(first.gradients, second.gradients), "");
    // Inputs behind the last learned token are seen by none of them; their embedding's gradient is zero.
    const Result third =
        step(batch_of({1, 2, 3, 4, 15, 16, 17, 18, 19}, {9}, unlearned, false), family, KernelSet::cpu);
    EXPECT_EQ(third.loss_sum, first.loss_sum);
    EXPECT_EQ(changed(first.gradients, third.gradients), "");
    // Learned, they do count.
    const Result all = step(batch_of({1, 2, 3, 4, 5, 6, 7, 8, 9}, {9}, {}, false), family, KernelSet::cpu);
    EXPECT_EQ(all.valid_tokens, 8);
    EXPECT_GT(all.loss_sum, first.loss_sum);
    EXPECT_NE(changed(first.gradients, all.gradients), "");
  }
}

// Documents A and B of a packed window; A is not learned, so that the loss is B's alone.
TEST(PackedDocuments, DoNotSeeEachOther_P115_ForEveryKernelSet) {
  for (const std::string family : {"gpt2", "llama"}) {
    for (const KernelSet kernels : {KernelSet::cpu, KernelSet::reference}) {
      const std::vector<TokenRange> a_unlearned = {{0, 4}};
      const Result one = step(batch_of({1, 2, 3, 4, 5, 6, 7, 8}, {4, 4}, a_unlearned, true), family, kernels);
      const Result two =
          step(batch_of({9, 9, 20, 30, 5, 6, 7, 8}, {4, 4}, a_unlearned, true), family, kernels);
      EXPECT_EQ(one.valid_tokens, 3);
      EXPECT_EQ(one.loss_sum, two.loss_sum) << family;
      EXPECT_EQ(changed(one.gradients, two.gradients), "") << family;
      // Alone in its window B has the same loss: its positions begin at 0.
      const Result alone = step(batch_of({5, 6, 7, 8}, {4}, {}, true), family, kernels);
      EXPECT_NEAR(alone.loss_sum, one.loss_sum, 1e-5 * one.loss_sum);
    }
  }
}

}  // namespace
}  // namespace athanor
