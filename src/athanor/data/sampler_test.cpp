#include "athanor/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "athanor/base/error_test_support.h"
#include "athanor/data/batch.h"
#include "athanor/data/permutation.h"

namespace athanor {
namespace {

using testing::HasSubstr;

RandomKey key_of(uint64_t seed, uint64_t epoch = 0) {
  return {seed, RandomPurpose::data_order, "test", epoch};
}

// Documents of given lengths without any file; token t has the id t mod 1000.
class DocumentsOfLengths final : public TokenSource {
 public:
  explicit DocumentsOfLengths(const std::vector<int64_t>& lengths) {
    for (const int64_t length : lengths) starts_.push_back(starts_.back() + length);
  }
  int64_t token_count() const override { return starts_.back(); }
  int64_t document_count() const override { return static_cast<int64_t>(starts_.size()) - 1; }
  int64_t vocabulary_size() const override { return 1000; }
  uint32_t identity() const override { return 1; }
  void read(int64_t first, std::span<int32_t> out) const override {
    ASSERT_GE(first, 0);
    ASSERT_LE(first + static_cast<int64_t>(out.size()), token_count());
    for (auto& id : out) id = static_cast<int32_t>(first++ % 1000);
  }
  Document document_at(int64_t position) const override {
    const auto after = std::upper_bound(starts_.begin(), starts_.end(), position);
    const auto number = static_cast<size_t>(after - starts_.begin()) - 1;
    return document(static_cast<int64_t>(number));
  }
  Document document(int64_t number) const override {
    return {number, starts_[static_cast<size_t>(number)], starts_[static_cast<size_t>(number) + 1]};
  }

 private:
  std::vector<int64_t> starts_{0};
};

// A great many documents of one token each, computed.
class SingleTokens final : public TokenSource {
 public:
  explicit SingleTokens(int64_t count) : count_(count) {}
  int64_t token_count() const override { return count_; }
  int64_t document_count() const override { return count_; }
  int64_t vocabulary_size() const override { return 1000; }
  uint32_t identity() const override { return 2; }
  void read(int64_t, std::span<int32_t> out) const override { std::fill(out.begin(), out.end(), 7); }
  Document document_at(int64_t position) const override { return document(position); }
  Document document(int64_t number) const override { return {number, number, number + 1}; }

 private:
  int64_t count_;
};

TEST(Permutation, IsABijectionOfEverySmallSize) {
  for (int64_t size = 1; size <= 300; ++size) {
    const Permutation permutation(size, key_of(5));
    std::set<int64_t> seen;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t entry = permutation(i);
      EXPECT_GE(entry, 0);
      EXPECT_LT(entry, size);
      seen.insert(entry);
    }
    EXPECT_EQ(static_cast<int64_t>(seen.size()), size);
  }
}

TEST(Permutation, IsABijectionAroundPowersOfFour) {
  for (const int64_t size : {65'535, 65'536, 65'537, 100'003}) {
    const Permutation permutation(size, key_of(6));
    std::vector<bool> seen(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) {
      const auto entry = static_cast<size_t>(permutation(i));
      EXPECT_FALSE(seen.at(entry));
      seen[entry] = true;
    }
  }
}

TEST(Permutation, HugeSizesStayInRange) {
  for (const int64_t size : {(int64_t{1} << 31) + 1, (int64_t{1} << 40) - 3, int64_t{1} << 62}) {
    const Permutation permutation(size, key_of(7));
    std::set<int64_t> seen;
    for (int64_t i = 0; i < 500; ++i) {
      for (const int64_t index : {i, size - 1 - i}) {
        const int64_t entry = permutation(index);
        EXPECT_GE(entry, 0);
        EXPECT_LT(entry, size);
        seen.insert(entry);
      }
    }
    EXPECT_EQ(seen.size(), 1000U);
  }
}

// All 24 orders of four elements come up about equally often: chi-squared with 23 degrees of freedom is
// above 58 with probability 1e-4. The keys are fixed, so the test is.
TEST(Permutation, OrdersOfFourAreUniform) {
  std::map<std::vector<int64_t>, int> counts;
  constexpr int trials = 24'000;
  for (uint64_t seed = 0; seed < trials; ++seed) {
    const Permutation permutation(4, key_of(seed));
    ++counts[{permutation(0), permutation(1), permutation(2), permutation(3)}];
  }
  ASSERT_EQ(counts.size(), 24U);
  double chi_squared = 0;
  for (const auto& [order, count] : counts) chi_squared += (count - 1000.0) * (count - 1000.0) / 1000.0;
  EXPECT_LT(chi_squared, 58.0);
}

// Neighbours land anywhere: differences of neighbouring entries, in 16 bins of the circle.
TEST(Permutation, NeighboursAreIndependent) {
  constexpr int64_t size = 10'007;
  const Permutation permutation(size, key_of(9));
  std::vector<double> bins(16);
  for (int64_t i = 0; i + 1 < size; ++i) {
    const int64_t difference = (permutation(i + 1) - permutation(i) + size) % size;
    bins[static_cast<size_t>(difference * 16 / size)] += 1;
  }
  double chi_squared = 0;
  const double expected = (size - 1) / 16.0;
  for (const double count : bins) chi_squared += (count - expected) * (count - expected) / expected;
  EXPECT_LT(chi_squared, 44.3);  // 15 degrees of freedom, probability 1e-4
}

TEST(Permutation, DependsOnSeedAndEpoch) {
  const Permutation one(1000, key_of(1)), other(1000, key_of(2)), later(1000, key_of(1, 1));
  int same_other = 0, same_later = 0;
  for (int64_t i = 0; i < 1000; ++i) {
    same_other += one(i) == other(i) ? 1 : 0;
    same_later += one(i) == later(i) ? 1 : 0;
  }
  EXPECT_LT(same_other, 10);
  EXPECT_LT(same_later, 10);
}

TEST(Sampler, ShortDataIsRefused_P55_OneTokenMoreThanASequenceIsASample) {
  constexpr int64_t sequence = 8;
  for (const int64_t tokens : {int64_t{0}, int64_t{1}, sequence}) {
    EXPECT_EQ(windows_in(tokens, sequence), 0);
    const std::string message =
        error_of([&] { Sampler({0, tokens}, {.sequence_length = sequence, .name = "tiny"}); });
    EXPECT_THAT(message, HasSubstr(fmt::format("'tiny' has {} tokens, which make 0 samples", tokens)));
    EXPECT_THAT(message, HasSubstr("sequence length 8 needs 9"));
  }
  for (const int64_t tokens : {sequence + 1, sequence + 2, 2 * sequence}) {
    const Sampler sampler({0, tokens}, {.sequence_length = sequence});
    EXPECT_EQ(sampler.samples_per_epoch(), 1);
    EXPECT_EQ(sampler.window(0).first_token, 0);
    EXPECT_EQ(sampler.window(7).first_token, 0);
    EXPECT_EQ(sampler.window(7).epoch, 7);
  }
  EXPECT_EQ(Sampler({0, 2 * sequence + 1}, {.sequence_length = sequence}).samples_per_epoch(), 2);
  EXPECT_THAT(error_of([] { Sampler({0, 100}, {.sequence_length = 0}); }), HasSubstr("sequence length is 0"));
}

TEST(Sampler, EveryEpochHasEveryWindowOnceInAnOrderOfItsOwn) {
  const Sampler sampler({50, 1051}, {.sequence_length = 10, .seed = 3});
  ASSERT_EQ(sampler.samples_per_epoch(), 100);
  std::vector<std::vector<int64_t>> orders;
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    std::vector<int64_t> order;
    for (int64_t i = 0; i < 100; ++i) {
      const Window window = sampler.window(epoch * 100 + i);
      EXPECT_EQ(window.epoch, epoch);
      EXPECT_EQ((window.first_token - 50) % 10, 0);
      order.push_back(window.first_token);
    }
    orders.push_back(order);
    std::sort(order.begin(), order.end());
    for (int64_t i = 0; i < 100; ++i) EXPECT_EQ(order[static_cast<size_t>(i)], 50 + 10 * i);
  }
  EXPECT_NE(orders[0], orders[1]);
  EXPECT_NE(orders[1], orders[2]);
  const Sampler plain({50, 1051}, {.sequence_length = 10, .shuffle = false});
  for (int64_t i = 0; i < 200; ++i) EXPECT_EQ(plain.window(i).first_token, 50 + 10 * (i % 100));
}

TEST(Sampler, LongTotals_P47_IndicesStay64Bit) {
  constexpr int64_t length = int64_t{1} << 30, sequence = int64_t{1} << 20;
  const auto documents = std::make_shared<DocumentsOfLengths>(std::vector<int64_t>{length, length, length});
  ASSERT_EQ(documents->token_count(), 3 * length);
  const Sampler sampler({0, documents->token_count()}, {.sequence_length = sequence, .seed = 11});
  ASSERT_EQ(sampler.samples_per_epoch(), 3071);
  const DataReport report = plan_epochs(*documents, sampler, 3 * 3071, 3);
  EXPECT_EQ(report.epochs_needed, 3);
  EXPECT_EQ(report.tokens, 3 * length);
  EXPECT_EQ(report.documents, 3);
  // Three epochs, and sample counters that cross 2^31.
  std::vector<int64_t> samples;
  for (int64_t sample = 0; sample < 3 * 3071; ++sample) samples.push_back(sample);
  for (int64_t sample = (int64_t{1} << 31) - 2; sample < (int64_t{1} << 31) + 3; ++sample)
    samples.push_back(sample);
  std::set<int64_t> far;
  for (const int64_t sample : samples) {
    const Window window = sampler.window(sample);
    EXPECT_EQ(window.sample, sample);
    EXPECT_EQ(window.epoch, sample / 3071);
    ASSERT_GE(window.first_token, 0);
    ASSERT_LE(window.first_token + sequence + 1, documents->token_count());
    const int64_t last = window.first_token + sequence;
    EXPECT_EQ(documents->document_at(last).number, last / length);
    if (sample < 3071) far.insert(window.first_token);
  }
  EXPECT_EQ(far.size(), 3071U);
  EXPECT_GT(*far.rbegin(), int64_t{1} << 31);

  // Document and token counters that cross 2^31: the second part begins at document 2^31 - 2.
  constexpr int64_t before = (int64_t{1} << 31) - 2;
  const auto stream = std::make_shared<TokenStream>(std::vector<std::shared_ptr<const TokenSource>>{
      std::make_shared<SingleTokens>(before),
      std::make_shared<DocumentsOfLengths>(std::vector<int64_t>{10, 20, 30, 40})});
  EXPECT_EQ(stream->token_count(), before + 100);
  EXPECT_EQ(stream->document_count(), before + 4);
  EXPECT_EQ(stream->document_at(before - 1).number, before - 1);
  const Document document = stream->document_at(before + 30);
  EXPECT_EQ(document.number, before + 2);
  EXPECT_EQ(document.begin, before + 30);
  EXPECT_EQ(document.end, before + 60);
  // A batch there: sequence + 1 tokens of exactly that place.
  const SampleSet set(stream, Sampler({before, before + 100}, {.sequence_length = 99, .shuffle = false}),
                      {.reset_positions = true, .mask_documents = true});
  const Batch batch = set.cut(std::vector<int64_t>{(int64_t{1} << 31) + 1});
  ASSERT_EQ(batch.token_ids.size(), 99U);
  EXPECT_EQ(batch.token_ids[98], 98);
  EXPECT_EQ(batch.labels[98], 99);
  EXPECT_EQ(batch.documents[98], 3);
  EXPECT_EQ(batch.positions[98], 38);
  EXPECT_EQ(batch.sample_ids[0], (int64_t{1} << 31) + 1);
}

TEST(PlanEpochs, NumbersAreTold_P54_TooManyEpochsAreRefused) {
  const DocumentsOfLengths documents(std::vector<int64_t>(100, 20));
  // A sample is a window, not a document: 100 documents make none of 2048 tokens.
  EXPECT_THAT(error_of([&] { Sampler({0, documents.token_count()}, {.sequence_length = 2048}); }),
              HasSubstr("2000 tokens, which make 0 samples: one of sequence length 2048 needs 2049"));
  const Sampler sampler({0, documents.token_count()}, {.sequence_length = 512});
  const DataReport report = plan_epochs(documents, sampler, 100, 0);
  EXPECT_EQ(report.documents, 100);
  EXPECT_EQ(report.tokens, 2000);
  EXPECT_EQ(report.samples_per_epoch, 3);
  EXPECT_EQ(report.epochs_needed, 34);
  constexpr auto text =
      "100 documents, 2000 tokens, 3 samples an epoch (sequence length 512); 100 samples wanted: 34 epochs";
  EXPECT_EQ(describe(report), text);
  EXPECT_EQ(plan_epochs(documents, sampler, 100, 34).epochs_needed, 34);
  EXPECT_EQ(plan_epochs(documents, sampler, 99, 33).epochs_needed, 33);
  const std::string message = error_of([&] { plan_epochs(documents, sampler, 100, 33); });
  EXPECT_THAT(message, HasSubstr("needs 34 epochs of its data, but at most 33 are allowed"));
  EXPECT_THAT(message, HasSubstr(text));
}

TEST(SplitTokens, ValidationIsTheTail) {
  const auto split = split_tokens(1001, 0.1);
  EXPECT_EQ(split.train, (TokenRange{0, 901}));
  EXPECT_EQ(split.validation, (TokenRange{901, 1001}));
  EXPECT_EQ(split_tokens(5, 0.0).validation.size(), 0);
  EXPECT_EQ(split_tokens(0, 0.5).train.size(), 0);
  for (const double fraction : {-0.1, 1.0, 2.0, std::numeric_limits<double>::quiet_NaN()}) {
    EXPECT_THAT(error_of([&] { split_tokens(10, fraction); }), HasSubstr("validation fraction"));
  }
}

}  // namespace
}  // namespace athanor
