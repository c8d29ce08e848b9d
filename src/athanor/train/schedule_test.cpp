#include "athanor/train/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "athanor/base/error.h"

namespace athanor {
namespace {

constexpr ScheduleKind all_kinds[] = {ScheduleKind::constant, ScheduleKind::linear, ScheduleKind::cosine,
                                      ScheduleKind::warmup_stable_decay};

TEST(LearningRate, RisesOverTheWarmUpAndIsNeverZero) {
  for (const ScheduleKind kind : all_kinds) {
    const ScheduleOptions options{.kind = kind, .rate = 1.0, .warmup_samples = 20, .decay_samples = 10};
    EXPECT_EQ(learning_rate(options, 0, 4, 100), 0.2);
    EXPECT_EQ(learning_rate(options, 4, 4, 100), 0.4);
    EXPECT_EQ(learning_rate(options, 12, 4, 100), 0.8);
    EXPECT_EQ(learning_rate(options, 16, 4, 100), 1.0);  // the step that ends the warm-up
    EXPECT_EQ(learning_rate(options, 20, 4, 100), 1.0);
  }
}

TEST(LearningRate, FallsAsItsNameSays) {
  ScheduleOptions options{.rate = 1.0, .minimum_rate = 0.2, .warmup_samples = 20};
  options.kind = ScheduleKind::constant;
  EXPECT_EQ(learning_rate(options, 99, 1, 100), 1.0);
  options.kind = ScheduleKind::linear;
  EXPECT_DOUBLE_EQ(learning_rate(options, 40, 1, 100), 0.2 + 0.8 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(options, 100, 1, 100), 0.2);
  options.kind = ScheduleKind::cosine;
  EXPECT_DOUBLE_EQ(learning_rate(options, 60, 1, 100), 0.2 + 0.8 * 0.5);
  EXPECT_DOUBLE_EQ(learning_rate(options, 40, 1, 100), 0.2 + 0.4 * (1 + std::cos(std::numbers::pi / 4)));
  EXPECT_DOUBLE_EQ(learning_rate(options, 100, 1, 100), 0.2);
  options.kind = ScheduleKind::warmup_stable_decay;
  options.decay_samples = 40;
  EXPECT_EQ(learning_rate(options, 60, 1, 100), 1.0);
  EXPECT_DOUBLE_EQ(learning_rate(options, 70, 1, 100), 0.2 + 0.8 * 0.75);
  EXPECT_DOUBLE_EQ(learning_rate(options, 100, 1, 100), 0.2);
  options.decay_samples = 0;
  EXPECT_EQ(learning_rate(options, 99, 1, 100), 1.0);
}

// Beyond the end, with a warm-up longer than the run, with all of it in one step: always within its bounds.
TEST(LearningRate, StaysWithinBounds_P68_WhateverTheProgress) {
  for (const ScheduleKind kind : all_kinds) {
    for (const double minimum : {0.0, 1e-5, 3e-4}) {
      for (const int64_t warmup : {0, 1, 128, 1000}) {
        const ScheduleOptions options{.kind = kind,
                                      .rate = 3e-4,
                                      .minimum_rate = minimum,
                                      .warmup_samples = warmup,
                                      .decay_samples = 64};
        for (const int64_t total : {1, 128, 256}) {
          for (int64_t consumed = 0; consumed < 40'000; consumed = consumed * 2 + 1) {
            const double rate = learning_rate(options, consumed, 128, total);
            EXPECT_GE(rate, 0);
            EXPECT_LE(rate, options.rate);
          }
        }
      }
    }
  }
}

TEST(BatchSize, GrowsAtTheStatedSamples) {
  EXPECT_EQ(batch_size({}, 3, 1000), 3);
  EXPECT_EQ(batch_size({.batch = 12}, 3, 0), 12);
  // 4 up to sample 24, 8 after it.
  const BatchSizeOptions two{.batch = 8, .ramp_from = 4, .ramp_step = 4, .ramp_samples = 24};
  EXPECT_EQ(batch_size(two, 4, 0), 4);
  EXPECT_EQ(batch_size(two, 4, 23), 4);
  EXPECT_EQ(batch_size(two, 4, 24), 8);
  // 2, 4, 6 over thirds of 10 samples, then 7: parts begin at 0, 3.34 and 6.67, the next whole sample counts.
  const BatchSizeOptions thirds{.batch = 7, .ramp_from = 2, .ramp_step = 2, .ramp_samples = 10};
  const int64_t expected[] = {2, 2, 2, 2, 4, 4, 4, 6, 6, 6, 7, 7};
  for (int64_t consumed = 0; consumed < 12; ++consumed) {
    EXPECT_EQ(batch_size(thirds, 1, consumed), expected[consumed]) << consumed;
  }
  EXPECT_EQ(micro_batch_counts(thirds, 1), (std::vector<int32_t>{2, 4, 6, 7}));
  EXPECT_EQ(micro_batch_counts({.batch = 8}, 2), (std::vector<int32_t>{4}));
}

// In floating point 1 / 49 * 49 is below 1.
TEST(BatchSize, BoundariesAreExact) {
  for (const int64_t parts : {3, 7, 10, 49, 98, 103}) {
    const BatchSizeOptions options{.batch = parts + 1, .ramp_from = 1, .ramp_step = 1, .ramp_samples = parts};
    for (int64_t consumed = 0; consumed <= parts; ++consumed) {
      ASSERT_EQ(batch_size(options, 1, consumed), 1 + consumed) << parts;
    }
  }
  const BatchSizeOptions large{
      .batch = 4, .ramp_from = 1, .ramp_step = 1, .ramp_samples = 999'999'999'999'999};
  EXPECT_EQ(batch_size(large, 1, 333'333'333'333'332), 1);
  EXPECT_EQ(batch_size(large, 1, 333'333'333'333'333), 2);
  EXPECT_EQ(batch_size(large, 1, 999'999'999'999'998), 3);
  EXPECT_EQ(batch_size(large, 1, 999'999'999'999'999), 4);
}

TEST(BatchSize, EveryBatchHasAProgramAndSamplesAddUp) {
  for (const int64_t from : {0, 2, 4, 10, 22}) {
    for (const int64_t step : {0, 2, 6, 100}) {
      for (const int64_t ramp : {1, 30, 257}) {
        const BatchSizeOptions options{
            .batch = 22, .ramp_from = from, .ramp_step = step, .ramp_samples = ramp};
        const std::vector<int32_t> counts = micro_batch_counts(options, 2);
        int64_t consumed = 0;
        for (int64_t done = 0; done < 60; ++done) {
          ASSERT_EQ(samples_after(options, 2, done), consumed)
              << from << " " << step << " " << ramp << " " << done;
          const int64_t batch = batch_size(options, 2, consumed);
          ASSERT_EQ(batch % 2, 0);
          ASSERT_TRUE(std::find(counts.begin(), counts.end(), batch / 2) != counts.end()) << batch;
          consumed += batch;
        }
      }
    }
  }
}

TEST(BatchSize, CountsLongRunsAtOnceAndRefusesEndlessOnes) {
  const BatchSizeOptions ramp{
      .batch = 1 << 20, .ramp_from = 1, .ramp_step = 1 << 19, .ramp_samples = 1'000'000'000'000'000};
  // One sample a step for the first third.
  EXPECT_EQ(samples_after(ramp, 1, 1'000'000'000'000), 1'000'000'000'000);
  EXPECT_THROW(samples_after({.batch = 1 << 30}, 1, 1'000'000'000'000), Error);
}

std::string refusal(const BatchSizeOptions& options, int64_t micro_batch) {
  try {
    validate_batch(options, micro_batch);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    return error.what();
  }
  return {};
}

TEST(BatchSize, RefusesWhatTheMeshDoesNotDivide) {
  Mesh mesh;
  mesh.sizes = {1, 2, 3, 2, 2, 1, 1};
  EXPECT_NO_THROW(validate_batch({.batch = 24}, 4, mesh));
  EXPECT_NO_THROW(validate_batch({}, 4, mesh));
  try {
    validate_batch({.batch = 64}, 4, mesh);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_EQ(error.message(),
              "train.batch 64 is not a multiple of 24 samples: mesh.replica 2 x mesh.shard 3 x "
              "train.micro_batch 4 (2 x 24 + 16)");
    EXPECT_EQ(error.hint(), "48 or 72 would do");
  }
}

TEST(BatchSize, RefusesWhatMicroBatchesDoNotDivide) {
  EXPECT_EQ(refusal({.batch = 12, .ramp_from = 4, .ramp_step = 8, .ramp_samples = 1}, 4), "");
  EXPECT_EQ(refusal({}, 4), "");
  const std::string batch = refusal({.batch = 10}, 4);
  EXPECT_NE(batch.find("train.batch 10 is not a multiple of train.micro_batch 4 (2 x 4 + 2)"),
            std::string::npos)
      << batch;
  EXPECT_NE(batch.find("8 or 12 would do"), std::string::npos) << batch;
  EXPECT_EQ(refusal({.batch = 3}, 4).find(" or "), std::string::npos);
  EXPECT_NE(refusal({.batch = 8, .ramp_from = 3, .ramp_samples = 1}, 4).find("train.batch_ramp_from 3"),
            std::string::npos);
  EXPECT_NE(refusal({.batch = 8, .ramp_from = 4, .ramp_step = 3, .ramp_samples = 1}, 4)
                .find("train.batch_ramp_step 3"),
            std::string::npos);
  EXPECT_NE(refusal({.batch = 8, .ramp_from = 4}, 4).find("train.batch_ramp_samples is not"),
            std::string::npos);
  EXPECT_NE(refusal({.batch = 8, .ramp_from = 12, .ramp_samples = 1}, 4).find("above train.batch 8"),
            std::string::npos);
}

}  // namespace
}  // namespace athanor
