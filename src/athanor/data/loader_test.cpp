#include "athanor/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>

#include "athanor/base/error.h"
#include "athanor/data/sample_mix.h"

namespace athanor {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Tokens 0, 1, 2 ... as one document, with a count of reads, a delay and a damaged place.
class Counting final : public TokenSource {
 public:
  explicit Counting(int64_t count, std::chrono::microseconds delay = {}, int64_t damaged_at = -1)
      : count_(count), delay_(delay), damaged_at_(damaged_at) {}
  int64_t token_count() const override { return count_; }
  int64_t document_count() const override { return 1; }
  int64_t vocabulary_size() const override { return 1 << 30; }
  uint32_t identity() const override { return 77; }
  void read(int64_t first, std::span<int32_t> out) const override {
    ++reads;
    std::this_thread::sleep_for(delay_);
    for (auto& id : out) {
      if (first == damaged_at_) throw_user_error("token file 'x': damaged", "make it again");
      id = static_cast<int32_t>(first++);
    }
  }
  Document document_at(int64_t) const override { return {0, 0, count_}; }
  Document document(int64_t) const override { return {0, 0, count_}; }

  mutable std::atomic<int64_t> reads{0};

 private:
  int64_t count_;
  std::chrono::microseconds delay_;
  int64_t damaged_at_;
};

std::shared_ptr<const SampleMix> sample_set(std::shared_ptr<const TokenSource> tokens, bool shuffle = true,
                                            uint64_t seed = 4) {
  const TokenRange range{0, tokens->token_count()};
  auto samples = std::make_shared<const SampleSet>(
      std::move(tokens), Sampler(range, {.sequence_length = 4, .shuffle = shuffle, .seed = seed}),
      BatchOptions{});
  return std::make_shared<const SampleMix>(
      std::vector<MixSource>{{.name = "train", .samples = std::move(samples)}});
}

Loader::BatchSize constant(int64_t size) {
  return [size](int64_t) { return size; };
}

std::vector<int64_t> ids_of(const StepBatch& step) {
  std::vector<int64_t> ids;
  for (const auto& batch : step.micro_batches)
    ids.insert(ids.end(), batch.sample_ids.begin(), batch.sample_ids.end());
  return ids;
}

// The state of a run that trains, as train keeps it: a position in text form.
struct TrainingRun {
  std::shared_ptr<const SampleMix> samples;
  Loader::BatchSize batch_size;
  int64_t micro_batch;
  std::string saved;              // the position, empty at first
  std::vector<int64_t> used{};    // sample ids, in order
  std::vector<int32_t> tokens{};  // the first token of each sample

  // Resumes from what is saved, takes steps, saves.
  void train(int steps) {
    auto mix = samples;
    int64_t begin = 0;
    if (!saved.empty()) {
      const DataPosition position = parse_data_position(saved);
      mix = std::make_shared<const SampleMix>(samples->resumed(position, false));
      begin = position.consumed_samples;
    }
    Loader loader(mix, {.micro_batch = micro_batch, .prefetch_steps = 3}, batch_size, begin);
    for (int step = 0; step < steps; ++step) {
      const StepBatch batch = loader.next();
      const auto ids = ids_of(batch);
      used.insert(used.end(), ids.begin(), ids.end());
      for (const auto& micro : batch.micro_batches) {
        for (int64_t row = 0; row < micro.samples; ++row) {
          tokens.push_back(micro.token_ids[static_cast<size_t>(row * micro.sequence_length)]);
        }
      }
    }
    saved = to_text(mix->position(loader.consumed_samples()));
  }
};

TEST(Loader, StepsAreCutIntoMicroBatches) {
  Loader loader(sample_set(std::make_shared<Counting>(1000), false), {.micro_batch = 2}, constant(6), 10);
  const StepBatch step = loader.next();
  EXPECT_EQ(step.first_sample, 10);
  EXPECT_EQ(step.samples, 6);
  EXPECT_EQ(step.consumed_after(), 16);
  ASSERT_EQ(step.micro_batches.size(), 3U);
  EXPECT_THAT(step.micro_batches[1].sample_ids, ElementsAre(12, 13));
  EXPECT_THAT(step.micro_batches[1].token_ids, ElementsAre(48, 49, 50, 51, 52, 53, 54, 55));
  EXPECT_EQ(loader.next().first_sample, 16);
}

TEST(Loader, PositionIsWhatWasConsumedNotWhatWasPrefetched) {
  const auto tokens = std::make_shared<Counting>(1000);
  Loader loader(sample_set(tokens), {.micro_batch = 1, .prefetch_steps = 5}, constant(2), 0);
  EXPECT_EQ(loader.consumed_samples(), 0);
  loader.next();
  // Two reads a sample; wait until the loader is several steps ahead.
  while (tokens->reads.load() < 2 * 2 * 6) std::this_thread::yield();
  EXPECT_EQ(loader.consumed_samples(), 2);
}

TEST(Loader, PrefetchIsBounded) {
  const auto tokens = std::make_shared<Counting>(1000);
  Loader loader(sample_set(tokens), {.micro_batch = 1, .prefetch_steps = 2}, constant(1), 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(30));
  // Two steps ready and one in hand that waits for room: two reads each.
  EXPECT_LE(tokens->reads.load(), 2 * 3);
}

TEST(Loader, LoadsWhileTheConsumerWorks) {
  const auto tokens = std::make_shared<Counting>(100'000);
  Loader loader(sample_set(tokens), {.micro_batch = 2}, constant(2), 0);
  for (int64_t step = 1; step <= 20; ++step) {
    loader.next();
    // A step of training. The next one, two reads for each of two samples, comes in without being asked for.
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (tokens->reads < (step + 1) * 4 && std::chrono::steady_clock::now() < deadline)
      std::this_thread::yield();
    ASSERT_GE(tokens->reads, (step + 1) * 4);
  }
}

TEST(Loader, StopsAtOnceWheneverItIsDestroyed) {
  for (int steps = 0; steps < 4; ++steps) {
    Loader loader(sample_set(std::make_shared<Counting>(1000)), {.micro_batch = 1, .prefetch_steps = 1},
                  constant(1), 0);
    for (int step = 0; step < steps; ++step) loader.next();
  }
}

TEST(Loader, AnErrorComesOnceAndAfterTheGoodBatches) {
  const auto tokens = std::make_shared<Counting>(1000, std::chrono::microseconds(0), 4 * 5);
  Loader loader(sample_set(tokens, false), {.micro_batch = 1}, constant(2), 0);
  EXPECT_EQ(loader.next().first_sample, 0);
  EXPECT_EQ(loader.next().first_sample, 2);
  try {
    loader.next();
    FAIL() << "sample 4 reads the damaged token";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_THAT(error.what(), HasSubstr("token file 'x': damaged"));
  }
  EXPECT_EQ(loader.consumed_samples(), 4);
  try {
    loader.next();
    FAIL() << "a stopped loader gives nothing";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("stopped after an error"));
  }
}

TEST(Loader, BatchesThatDoNotDivideAreRefused) {
  for (const int64_t size : {int64_t{3}, int64_t{0}, int64_t{-2}}) {
    Loader loader(sample_set(std::make_shared<Counting>(1000)), {.micro_batch = 2}, constant(size), 0);
    try {
      loader.next();
      FAIL();
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("batch of {} samples after 0", size)));
    }
  }
}

TEST(Loader, ResumeCountsAccumulation_P56_IdsAreThoseOfTheUninterruptedRun) {
  const auto samples = sample_set(std::make_shared<Counting>(1000));
  TrainingRun whole{samples, constant(8), 2, ""};  // accumulation 4
  whole.train(20);
  TrainingRun broken{samples, constant(8), 2, ""};
  broken.train(5);
  broken.train(15);
  ASSERT_EQ(whole.used.size(), 160U);
  for (size_t i = 0; i < 160; ++i) EXPECT_EQ(whole.used[i], static_cast<int64_t>(i));
  EXPECT_EQ(broken.used, whole.used);
  EXPECT_EQ(broken.tokens, whole.tokens);
}

TEST(Loader, SecondResumeGoesOn_P60_IdsContinueThroughThreeSegments) {
  const auto samples = sample_set(std::make_shared<Counting>(1000));
  TrainingRun whole{samples, constant(4), 4, ""};
  whole.train(30);
  TrainingRun broken{samples, constant(4), 4, ""};
  for (int segment = 0; segment < 3; ++segment) {
    broken.train(10);
    EXPECT_EQ(parse_data_position(broken.saved).consumed_samples, 40 * (segment + 1));
  }
  EXPECT_EQ(broken.used, whole.used);
  EXPECT_EQ(broken.tokens, whole.tokens);
}

TEST(Loader, PositionIsInSamples_P62_MicroBatchAndRampDoNotMoveIt) {
  const auto samples = sample_set(std::make_shared<Counting>(1000));
  TrainingRun changed{samples, constant(8), 2, ""};
  changed.train(3);
  EXPECT_EQ(parse_data_position(changed.saved).consumed_samples, 24);
  changed.micro_batch = 4;
  changed.train(1);
  EXPECT_EQ(changed.used[24], 24);
  EXPECT_EQ(parse_data_position(changed.saved).consumed_samples, 32);

  // A ramp: batches of 4 up to sample 24, then of 8; saved at samples 24 and 32.
  const auto ramp = [](int64_t consumed) { return consumed < 24 ? int64_t{4} : int64_t{8}; };
  TrainingRun whole{samples, ramp, 2, ""};
  whole.train(9);
  TrainingRun broken{samples, ramp, 2, ""};
  broken.train(6);
  EXPECT_EQ(parse_data_position(broken.saved).consumed_samples, 24);
  broken.train(1);
  EXPECT_EQ(parse_data_position(broken.saved).consumed_samples, 32);
  broken.train(2);
  EXPECT_EQ(parse_data_position(broken.saved).consumed_samples, 48);
  EXPECT_EQ(broken.used, whole.used);
  for (size_t i = 0; i < broken.used.size(); ++i) EXPECT_EQ(broken.used[i], static_cast<int64_t>(i));
  EXPECT_EQ(broken.tokens, whole.tokens);
}

// Two sources of different size: an uneven walk through each.
std::shared_ptr<const SampleMix> uneven_mix() {
  const auto set = [](int64_t tokens) {
    return std::make_shared<const SampleSet>(std::make_shared<Counting>(tokens),
                                             Sampler({0, tokens}, {.sequence_length = 4, .seed = 4}),
                                             BatchOptions{});
  };
  return std::make_shared<const SampleMix>(
      std::vector<MixSource>{{"small", "0.3", set(61)}, {"large", "0.7", set(4001)}});
}

// Every micro-batch of a step is what one of so many data-parallel ranks would get.
TEST(Loader, PositionIsOneCounter_P58_RanksGoOnWhereEachOfThemWas) {
  for (const auto& samples : {sample_set(std::make_shared<Counting>(1000)), uneven_mix()}) {
    TrainingRun whole{samples, constant(20), 5, ""};
    whole.train(5);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(whole.used[i], static_cast<int64_t>(i));
    TrainingRun broken{samples, constant(20), 5, ""};
    broken.train(2);
    broken.train(1);
    broken.train(2);
    EXPECT_EQ(broken.used, whole.used);
    EXPECT_EQ(broken.tokens, whole.tokens);
  }
}

TEST(Loader, RanksMayChange_P59_EveryIdComesOnce) {
  const auto samples = uneven_mix();
  TrainingRun whole{samples, constant(20), 5, ""};
  whole.train(5);
  for (const int64_t ranks : {1, 2, 5}) {
    TrainingRun changed{samples, constant(20), 5, ""};  // four ranks
    changed.train(2);
    changed.micro_batch = 20 / ranks;
    changed.train(3);
    ASSERT_EQ(changed.used.size(), 100U);
    for (size_t i = 0; i < 100; ++i) EXPECT_EQ(changed.used[i], static_cast<int64_t>(i));
    EXPECT_EQ(changed.tokens, whole.tokens);
  }
  TrainingRun odd{samples, constant(20), 5, ""};
  odd.train(2);
  odd.micro_batch = 3;
  EXPECT_THROW(odd.train(1), Error);
}

}  // namespace
}  // namespace athanor
