#include "athanor/train/initialise_from.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>

#include "athanor/base/error_test_support.h"
#include "athanor/base/memory_file_environment.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/train/train_test_support.h"

namespace athanor {
namespace {

using testing::HasSubstr;

std::map<std::string, std::vector<std::byte>> copied(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::vector<std::byte>> result;
  for (const NamedTensor& tensor : tensors) {
    result[tensor.name] = std::vector<std::byte>(tensor.bytes.begin(), tensor.bytes.end());
  }
  return result;
}

// The engine's state as a checkpoint of so many bytes an element at most, less the names that `leave_out`
// holds.
CheckpointWeights saved(FileEnvironment& files, Engine& engine, DType dtype,
                        const std::string& leave_out = "none") {
  std::vector<std::vector<std::byte>> storage;
  std::vector<TensorBytes> tensors;
  for (const NamedTensor& tensor : engine.state()) {
    if (tensor.name.find(leave_out) != std::string::npos) continue;
    std::vector<int64_t> shape;
    for (int dim = 0; dim < tensor.shape.rank(); ++dim) shape.push_back(tensor.shape[dim]);
    auto& bytes = storage.emplace_back(static_cast<size_t>(tensor.shape.elements()) * size_of(dtype));
    convert_floats(tensor.dtype, tensor.bytes, dtype, bytes);
    tensors.push_back({tensor.name, dtype, shape, bytes});
  }
  static int64_t step = 0;
  CheckpointFolder folder(files, "checkpoints", {.keep_last = 100});
  const SaveReport report = folder.save(++step, tensors, {});
  return CheckpointWeights(Checkpoint::open(files, report.path));
}

std::unique_ptr<Engine> trained(const EngineOptions& options, int64_t steps) {
  auto engine = make_engine(options);
  for (int64_t step = 0; step < steps; ++step) {
    const Batch batch = tiny_batch(options, step);
    engine->train_step({&batch, 1}, step, step, 1e-2);
  }
  return engine;
}

class InitialiseFrom : public testing::TestWithParam<const char*> {};

TEST_P(InitialiseFrom, TakesTheWeightsAndAFreshOptimizer) {
  MemoryFileEnvironment files;
  EngineOptions options = tiny_options(GetParam());
  options.compile.optimizer.average_decay = 0.9;
  const auto source = trained(options, 3);
  const CheckpointWeights weights = saved(files, *source, DType::fp32);
  options.seed = 99;
  const auto engine = make_engine(options);
  const auto fresh = copied(engine->state());
  initialise_from(*engine, weights, false);
  const auto expected = copied(source->weights());
  for (const auto& [name, bytes] : copied(engine->state())) {
    if (expected.contains(name)) {
      EXPECT_EQ(bytes, expected.at(name)) << name;
    } else if (name.starts_with("average.")) {  // begins at the weights
      EXPECT_EQ(bytes, expected.at(name.substr(8))) << name;
    } else {
      EXPECT_EQ(bytes, fresh.at(name)) << name;
    }
  }
}

TEST_P(InitialiseFrom, WithTheOptimizersStateTheRunGoesOn) {
  MemoryFileEnvironment files;
  EngineOptions options = tiny_options(GetParam());
  options.compile.optimizer.average_decay = 0.9;
  const auto source = trained(options, 3);
  const CheckpointWeights weights = saved(files, *source, DType::fp32);
  const auto engine = make_engine(options);
  initialise_from(*engine, weights, true);
  for (int64_t step = 3; step < 5; ++step) {
    const Batch batch = tiny_batch(options, step);
    source->train_step({&batch, 1}, step, step, 1e-2);
    engine->train_step({&batch, 1}, step, step, 1e-2);
  }
  EXPECT_TRUE(copied(engine->state()) == copied(source->state()));
}

TEST_P(InitialiseFrom, ConvertsTypes) {
  MemoryFileEnvironment files;
  EngineOptions options = tiny_options(GetParam());
  const auto source = trained(options, 2);
  for (const DType dtype : {DType::bf16, DType::fp16, DType::fp64}) {
    const CheckpointWeights weights = saved(files, *source, dtype);
    const auto engine = make_engine(options);
    initialise_from(*engine, weights, false);
    for (const NamedTensor& tensor : engine->weights()) {
      std::vector<double> there(static_cast<size_t>(tensor.shape.elements()));
      weights.read(*weights.find(tensor.name), DType::fp64, std::as_writable_bytes(std::span(there)));
      for (size_t i = 0; i < there.size(); ++i) {
        ASSERT_EQ(float_at(tensor.dtype, tensor.bytes, static_cast<int64_t>(i)), there[i]) << tensor.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, InitialiseFrom, testing::Values("gpt2", "llama"),
                         [](const auto& parameter) { return std::string(parameter.param); });

TEST(InitialiseFromRefuses, AnotherModelByNameAndShape) {
  MemoryFileEnvironment files;
  EngineOptions options = tiny_options("gpt2");
  const auto source = trained(options, 1);
  const CheckpointWeights weights = saved(files, *source, DType::fp32);
  options.model.vocabulary = 40;
  const auto wider = make_engine(options);
  const auto before = copied(wider->state());
  EXPECT_THAT(error_of([&] { initialise_from(*wider, weights, false); }),
              HasSubstr("embedding.token.weight is [37,16] there and [40,16] here"));
  EXPECT_TRUE(copied(wider->state()) == before);
  options = tiny_options("gpt2");
  options.model.layers = 3;
  EXPECT_THAT(error_of([&] { initialise_from(*make_engine(options), weights, false); }),
              HasSubstr("block.2.attention.key.bias is missing there"));
  options.model.layers = 1;
  EXPECT_THAT(error_of([&] { initialise_from(*make_engine(options), weights, false); }),
              HasSubstr("block.1.attention.key.bias is there only"));
}

TEST(InitialiseFromRefuses, AMissingOptimizerState) {
  MemoryFileEnvironment files;
  const EngineOptions options = tiny_options("gpt2");
  const auto source = trained(options, 1);
  const CheckpointWeights weights = saved(files, *source, DType::fp32, "second_moment.");
  const auto engine = make_engine(options);
  EXPECT_THAT(error_of([&] { initialise_from(*engine, weights, true); }),
              HasSubstr("second_moment.embedding.token.weight is missing there"));
  initialise_from(*engine, weights, false);
}

TEST(InitialiseFromRefuses, ValuesThatAreNotFinite) {
  MemoryFileEnvironment files;
  const EngineOptions options = tiny_options("gpt2");
  const auto source = make_engine(options);
  for (const NamedTensor& tensor : source->weights()) {
    if (tensor.name != "final_norm.bias") continue;
    const float bad = NAN;
    std::memcpy(tensor.bytes.data() + 12, &bad, 4);
  }
  const CheckpointWeights weights = saved(files, *source, DType::fp32);
  EXPECT_THAT(error_of([&] { initialise_from(*make_engine(options), weights, false); }),
              HasSubstr("element 3 of final_norm.bias is nan"));
}

}  // namespace
}  // namespace athanor
