#include "athanor/train/loss_scale.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

constexpr double infinity = std::numeric_limits<double>::infinity();

LossScaleOptions quick() {
  return {.initial = 1024, .growth_factor = 4, .backoff_factor = 0.5, .growth_interval = 3, .minimum = 128};
}

TEST(LossScaler, GrowsAfterStepsWithoutOverflowAndBacksOff) {
  LossScaler scaler(quick(), true);
  const auto after = [&](std::initializer_list<bool> overflows) {
    for (const bool overflow : overflows) scaler.update(overflow);
    return scaler.scale();
  };
  EXPECT_EQ(scaler.scale(), 1024);
  EXPECT_EQ(after({false, false}), 1024);
  EXPECT_EQ(after({false}), 4096);
  EXPECT_EQ(after({false, false, true}), 2048);  // an overflow begins the count anew
  EXPECT_EQ(after({false, false}), 2048);
  EXPECT_EQ(after({false}), 8192);
  EXPECT_EQ(after({true, true, true, true, true}), 256);
  EXPECT_FALSE(scaler.at_minimum());
  EXPECT_EQ(after({true}), 128);
  EXPECT_TRUE(scaler.at_minimum());
  EXPECT_EQ(after({true}), 128);
}

TEST(LossScaler, StaysFinite) {
  LossScaleOptions options = quick();
  options.growth_factor = 1e15;
  options.growth_interval = 1;
  LossScaler scaler(options, true);
  for (int i = 0; i < 1000; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), 0x1p100);
}

TEST(LossScaler, OnlyNormsThatAreNotFiniteAreOverflows) {
  const LossScaler scaler(quick(), true);
  EXPECT_FALSE(scaler.overflowed(3, 1e30));
  EXPECT_TRUE(scaler.overflowed(3, infinity));
  EXPECT_TRUE(scaler.overflowed(3, std::nan("")));
  // No scale mends a loss.
  EXPECT_FALSE(scaler.overflowed(std::nan(""), std::nan("")));
  EXPECT_FALSE(scaler.overflowed(infinity, infinity));
}

TEST(LossScaler, IsOneWhereNothingIsScaled) {
  LossScaler scaler(quick(), false);
  for (int i = 0; i < 10; ++i) scaler.update(i % 2 == 0);
  EXPECT_EQ(scaler.scale(), 1);
  EXPECT_FALSE(scaler.overflowed(3, infinity));
}

TEST(LossScaler, GoesOnWhereItWasSaved) {
  LossScaleOptions options = quick();
  options.initial = 1000.1;  // no power of two
  options.backoff_factor = 0.7;
  LossScaler one(options, true), other(options, true);
  for (const bool overflow : {false, true, true, false, false}) one.update(overflow);
  other.restore(one.to_text());
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(one.scale(), other.scale());
    one.update(false);
    other.update(false);
  }
  for (const char* text :
       {"", "1024", "1024 -1", "-1024 3", "0 1", "nan 1", "inf 1", "1024 3 ", "1024  3", "x 1"})
    EXPECT_THROW(other.restore(text), Error) << text;
  EXPECT_EQ(one.to_text(), other.to_text());
}

TEST(LossScaler, RefusesABeginBelowTheMinimum) {
  LossScaleOptions options = quick();
  options.initial = 64;
  EXPECT_THROW(LossScaler(options, true), Error);
  EXPECT_NO_THROW(LossScaler(options, false));
}

// One step of an engine with a loss scale.
struct Stepped {
  StepResult result;
  std::map<std::string, std::vector<std::byte>> state;
};
Stepped step_with(EngineOptions options, double scale) {
  options.compile.optimizer.maximum_norm = 0.5;
  const auto engine = make_engine(options);
  engine->set_loss_scale(scale);
  const Batch batch = tiny_batch(options, 1);
  Stepped stepped;
  stepped.result = engine->train_step({&batch, 1}, 0, 0, 1e-2);
  stepped.state = bytes_of(engine->state());
  return stepped;
}

// A power of two changes no rounding of fp32: norm, clipping, moments and weights are the very bits.
TEST(LossScale, IsTakenOffBeforeTheNormAndTheUpdate) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::lamb}) {
    EngineOptions options = tiny_options("llama");
    options.compile.optimizer.kind = kind;
    const Stepped plain = step_with(options, 1), scaled = step_with(options, 1024);
    EXPECT_EQ(plain.result.gradient_norm, scaled.result.gradient_norm);
    EXPECT_LT(plain.result.clip_factor, 1);
    EXPECT_EQ(plain.result.clip_factor, scaled.result.clip_factor);
    EXPECT_EQ(plain.result.loss, scaled.result.loss);
    EXPECT_EQ(changed(plain.state, scaled.state), "");
  }
}

// Gradients that fp16 would lose come through, and too large a scale overflows.
TEST(LossScale, LiftsGradientsOfFp16) {
  for (const char* family : {"gpt2", "llama"}) {
    EngineOptions options = tiny_options(family);
    const double expected = step_with(options, 1).result.gradient_norm;
    options.compile.precision = Precision::fp16;
    const auto error = [&](double scale) {
      return std::abs(step_with(options, scale).result.gradient_norm / expected - 1);
    };
    EXPECT_LT(error(1024), 2e-3);
    EXPECT_GT(error(0x1p-20), 0.1);
  }
}

TEST(LossScale, Overflow_P38_LeavesWeightsAndMomentsUntouched) {
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::sgd, OptimizerKind::lamb}) {
    EngineOptions options = tiny_options("gpt2");
    options.compile.precision = Precision::fp16;
    options.compile.optimizer.kind = kind;
    options.compile.optimizer.average_decay = 0.9;
    const auto engine = make_engine(options);
    const Batch batch = tiny_batch(options, 1);
    ASSERT_FALSE(engine->train_step({&batch, 1}, 0, 0, 1e-2).skipped);
    const auto before = bytes_of(engine->state());
    engine->set_loss_scale(0x1p40);
    const StepResult overflow = engine->train_step({&batch, 1}, 1, 1, 1e-2);
    EXPECT_TRUE(std::isfinite(overflow.loss));
    EXPECT_FALSE(std::isfinite(overflow.gradient_norm));
    EXPECT_TRUE(overflow.skipped);
    EXPECT_EQ(changed(before, bytes_of(engine->state())), "");
    engine->set_loss_scale(1024);
    EXPECT_FALSE(engine->train_step({&batch, 1}, 2, 1, 1e-2).skipped);
    EXPECT_NE(changed(before, bytes_of(engine->state())), "");
  }
}

}  // namespace
}  // namespace athanor
