// Known faults of training on many ranks, each looked for with engines as ranks in threads.

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include "athanor/base/philox.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/comm/rank_threads.h"
#include "athanor/train/loss_scale.h"
#include "athanor/train/rank_layout.h"
#include "athanor/train/replica_check.h"
#include "support/rank_engines.h"

namespace athanor {
namespace {

constexpr int64_t length = 24;

EngineOptions tiny_options(Precision precision = Precision::fp64) {
  EngineOptions options = tiny_engine(precision, length);
  options.sequence_length = length;
  return options;
}

EngineOptions on(EngineOptions options, Axis axis, int32_t ranks, int32_t zero = 0) {
  options.compile.layout.mesh.sizes[static_cast<size_t>(axis)] = ranks;
  options.compile.zero_stage = zero;
  return options;
}

// Samples with these ids; the first `valid[i]` labels of sample i count.
Batch batch_of(const std::vector<int64_t>& ids, const std::vector<int64_t>& valid = {}) {
  Batch batch = empty_batch(ids, length);
  for (size_t i = 0; i < batch.token_ids.size(); ++i) {
    const size_t row = i / static_cast<size_t>(length), place = i % static_cast<size_t>(length);
    const auto token = [&](size_t at) {
      return static_cast<int32_t>(mix64(static_cast<uint64_t>(ids[row]) * 1000 + at) % 29);
    };
    batch.token_ids[i] = token(place);
    batch.positions[i] = static_cast<int32_t>(place);
    if (valid.empty() || static_cast<int64_t>(place) < valid[row]) batch.labels[i] = token(place + 1);
  }
  return batch;
}

// Hands out a batch that is there already.
class OneBatch final : public SampleReader {
 public:
  explicit OneBatch(Batch batch) : batch_(std::move(batch)) {}
  Batch cut(std::span<const int64_t> sample_ids) const override {
    Batch rows = empty_batch(sample_ids, length);
    for (size_t i = 0; i < sample_ids.size(); ++i) {
      const auto row = std::ranges::find(batch_.sample_ids, sample_ids[i]) - batch_.sample_ids.begin();
      for (auto array :
           {&Batch::token_ids, &Batch::labels, &Batch::positions, &Batch::documents, &Batch::indices})
        std::copy_n((batch_.*array).begin() + row * length, length,
                    (rows.*array).begin() + static_cast<int64_t>(i) * length);
    }
    return rows;
  }

 private:
  Batch batch_;
};

Batch part_of(const Batch& whole, const BatchPart& part) {
  return PartReader(std::make_shared<OneBatch>(whole), part).cut(whole.sample_ids);
}

// What this rank has of tensors, by name and element of the whole.
std::map<std::string, std::map<int64_t, double>> elements_of(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::map<int64_t, double>> elements;
  for (const NamedTensor& tensor : tensors) {
    for (const StoredRun& run : tensor.runs) {
      for (int64_t i = 0; i < run.length; ++i)
        elements[tensor.name][run.global_first + i] =
            float_at(tensor.dtype, tensor.bytes, run.local_first + i);
    }
  }
  return elements;
}

// Engines of all ranks, made and initialised; `work(engine, part)` on each, part being the rank's part of
// batches of `samples` samples.
template <class Work>
void on_engines(EngineOptions options, int64_t samples, const Work& work) {
  const Mesh mesh = options.compile.layout.mesh;
  const int64_t data_ranks = mesh.data_ranks();
  options.micro_batch = samples / data_ranks;
  const auto run = [&](Communicator* communicator) {
    EngineOptions own = options;
    own.communicator = communicator;
    const int rank = communicator == nullptr ? 0 : communicator->rank();
    Engine engine(own);
    engine.allocate();
    engine.initialise();
    work(engine, batch_part(own.model, own.compile.layout, rank, own.micro_batch, length), rank);
  };
  if (mesh.ranks() == 1) return run(nullptr);
  for (const std::string& error : run_rank_threads(static_cast<int>(mesh.ranks()),
                                                   [&](Communicator& communicator) { run(&communicator); }))
    EXPECT_EQ(error, "");
}

// Elements of one kind of tensor from all ranks; copies must be equal to the bit.
class Gathered {
 public:
  void add(const std::vector<NamedTensor>& tensors) {
    const std::lock_guard lock(mutex_);
    for (const auto& [name, elements] : elements_of(tensors)) {
      for (const auto& [index, value] : elements) {
        const auto [place, added] = values_[name].emplace(index, value);
        EXPECT_EQ(place->second, value) << name << " differs between ranks";
      }
    }
  }
  const std::map<std::string, std::map<int64_t, double>>& values() const { return values_; }

 private:
  std::mutex mutex_;
  std::map<std::string, std::map<int64_t, double>> values_;
};

double largest_difference(const Gathered& expected, const Gathered& actual) {
  double largest = 0, difference = 0;
  for (const auto& [name, elements] : expected.values()) {
    if (name.ends_with("key.bias")) continue;  // its gradient is rounding alone
    for (const auto& [index, value] : elements) {
      largest = std::max(largest, std::abs(value));
      difference = std::max(difference, std::abs(value - actual.values().at(name).at(index)));
    }
  }
  return difference / largest;
}

// Ranks with 5 + 10 and 20 + 3 valid tokens: the divisor is 38, and the loss that of one rank.
TEST(ValidTokens, P07_AreSummedOnceOverMicroBatchesAndRanks) {
  const auto batches = [](const BatchPart& part) {
    return std::vector<Batch>{part_of(batch_of({0, 1}, {5, 20}), part),
                              part_of(batch_of({2, 3}, {10, 3}), part)};
  };
  double loss = 0;
  for (const int32_t ranks : {1, 2}) {
    for (const int32_t zero : {0, 2}) {
      EngineOptions options = on(tiny_options(), Axis::shard, ranks, zero);
      options.micro_batch_counts = {2};
      on_engines(options, 2, [&](Engine& engine, const BatchPart& part, int) {
        const StepResult result = engine.train_step(batches(part), 0, 0, 1e-2);
        EXPECT_EQ(result.valid_tokens, 38);
        if (ranks == 1) loss = result.loss;
        EXPECT_NEAR(result.loss, loss, 1e-12 * loss);
      });
    }
  }
}

// One of two ranks has no valid token: it adds nothing, and updates its part as the other one does.
TEST(ValidTokens, P08_ARankWithoutAnyTakesPartInEverything) {
  for (const std::vector<int64_t>& valid : {std::vector<int64_t>{length, 0}, {0, 7}}) {
    const auto step = [&](Gathered& weights, Engine& engine, const BatchPart& part) {
      const StepResult result =
          engine.train_step(std::vector<Batch>{part_of(batch_of({0, 1}, valid), part)}, 0, 0, 1e-2);
      EXPECT_EQ(result.valid_tokens, valid[0] + valid[1]);
      EXPECT_FALSE(result.skipped);
      weights.add(engine.weights());
    };
    Gathered one;
    on_engines(tiny_options(), 2,
               [&](Engine& engine, const BatchPart& part, int) { step(one, engine, part); });
    for (const int32_t zero : {0, 1, 2, 3}) {
      Gathered many;
      on_engines(on(tiny_options(), Axis::shard, 2, zero), 2,
                 [&](Engine& engine, const BatchPart& part, int) { step(many, engine, part); });
      EXPECT_LE(largest_difference(one, many), 1e-12) << zero;
    }
  }
}

// Every bucket of gradients is summed over every axis that has contributions, once a step; with stages 2 and
// 3 over axis shard once a micro-batch.
TEST(GradientSums, P18_AreMadeOnceForEachBucketAndAxis) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    EngineOptions options = tiny_options();
    options.compile.layout.mesh.sizes = {1, 2, 2, 2, 1, 1, 1};
    options.compile.zero_stage = zero;
    options.micro_batch_counts = {3};
    const Engine engine(options);
    const ProgramSet& set = engine.programs();
    std::map<std::pair<std::string, Axis>, int> sums;
    for (const Call& call : set.programs[0].calls) {
      const Template& block = set.programs[0].templates[static_cast<size_t>(call.template_id)];
      if (!block.name.starts_with("sum.") && !block.name.starts_with("scatter.")) continue;
      for (const Operation& operation : block.graph.operations) {
        if (operation.kind != OperationKind::reduce_members &&
            operation.kind != OperationKind::reduce_scatter_bucket)
          continue;
        const auto bucket = block.name.substr(block.name.find('.') + 1);
        ++sums[{bucket + "/" + std::to_string(call.layer), operation.attributes.axis}];
      }
    }
    for (const char* bucket : {"embedding/-1", "block.{layer}/0", "block.{layer}/1", "head/-1"}) {
      EXPECT_EQ((sums[{bucket, Axis::replica}]), 1) << bucket << " zero " << zero;
      EXPECT_EQ((sums[{bucket, Axis::context}]), 1) << bucket << " zero " << zero;
      EXPECT_EQ((sums[{bucket, Axis::shard}]), zero >= 2 ? 3 : 1) << bucket << " zero " << zero;
    }
    EXPECT_EQ(sums.size(), 12U);
  }
}

// Eight samples a step on two ranks, at once and in four micro-batches: the same losses, and weights equal
// on both ranks after every step.
TEST(GradientSums, P20_AccumulationChangesRoundingOnly) {
  std::vector<double> losses[2];
  for (const size_t accumulated : {size_t{0}, size_t{1}}) {
    EngineOptions options = on(tiny_options(Precision::fp32), Axis::replica, 2);
    const int64_t samples = accumulated == 0 ? 8 : 2;
    options.micro_batch_counts = {static_cast<int32_t>(8 / samples)};
    std::vector<Gathered> weights(5);
    on_engines(options, samples, [&](Engine& engine, const BatchPart& part, int rank) {
      for (int64_t step = 0; step < 5; ++step) {
        std::vector<Batch> batches;
        for (int64_t first = 0; first < 8; first += samples) {
          std::vector<int64_t> ids;
          for (int64_t i = 0; i < samples; ++i) ids.push_back(8 * step + first + i);
          batches.push_back(part_of(batch_of(ids), part));
        }
        const StepResult result = engine.train_step(batches, step, step, 1e-2);
        if (rank == 0) losses[accumulated].push_back(result.loss);
        weights[static_cast<size_t>(step)].add(engine.weights());
      }
    });
  }
  ASSERT_EQ(losses[0].size(), 5U);
  ASSERT_EQ(losses[1].size(), 5U);
  for (size_t step = 0; step < 5; ++step)
    EXPECT_NEAR(losses[0][step], losses[1][step], 1e-6 * losses[0][step]);
}

// The smallest way to train: one call. What ranks with other samples then hold is the same, and what one rank
// with all samples would.
TEST(GradientSums, P21_OneStepLeavesTheSameWeightsEverywhere) {
  Gathered one;
  on_engines(tiny_options(), 2, [&](Engine& engine, const BatchPart&, int) {
    engine.train_step(std::vector<Batch>{batch_of({7, 8})}, 0, 0, 1e-2);
    one.add(engine.weights());
  });
  for (const Axis axis : {Axis::replica, Axis::shard, Axis::context, Axis::tensor}) {
    Gathered many;
    on_engines(on(tiny_options(), axis, 2), 2, [&](Engine& engine, const BatchPart& part, int) {
      engine.train_step(std::vector<Batch>{part_of(batch_of({7, 8}), part)}, 0, 0, 1e-2);
      many.add(engine.weights());
    });
    EXPECT_LE(largest_difference(one, many), 1e-12) << name_of(axis);
  }
}

// bf16 weights, gradients accumulated over two micro-batches and two ranks: one fp32 gradient, which differs
// from that of an fp32 run by the rounding of weights and activations.
TEST(GradientSums, P37_OneBufferAccumulatesIsReducedAndUsed) {
  const auto run = [](Precision precision, int32_t ranks, int32_t zero, Gathered& gradients) {
    EngineOptions options = on(tiny_options(precision), Axis::shard, ranks, zero);
    options.micro_batch_counts = {2};
    double norm = 0;
    on_engines(options, 2, [&](Engine& engine, const BatchPart& part, int rank) {
      const StepResult result = engine.train_step(
          std::vector<Batch>{part_of(batch_of({0, 1}), part), part_of(batch_of({2, 3}), part)}, 0, 0, 0);
      for (const NamedTensor& gradient : engine.gradients()) EXPECT_EQ(gradient.dtype, DType::fp32);
      gradients.add(engine.gradients());
      if (rank == 0) norm = result.gradient_norm;
    });
    return norm;
  };
  Gathered wide;
  const double expected = run(Precision::fp32, 1, 0, wide);
  for (const int32_t zero : {0, 1, 2, 3}) {
    Gathered narrow;
    EXPECT_NEAR(run(Precision::bf16, 2, zero, narrow), expected, 0.01 * expected) << zero;
    EXPECT_LE(largest_difference(wide, narrow), 0.02) << zero;
  }
}

// What one rank of a run in fp16 does and has, with an overflow in the third of five steps.
struct OverflowRun {
  std::vector<bool> skipped;
  std::vector<double> scales, norms;  // of each step
  std::map<std::string, std::vector<std::byte>> before, after, end;
};

std::map<std::string, std::vector<std::byte>> bytes_of(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::vector<std::byte>> bytes;
  for (const NamedTensor& tensor : tensors) bytes[tensor.name] = {tensor.bytes.begin(), tensor.bytes.end()};
  return bytes;
}

void spoil(const Observation& seen) {
  if (seen.operation->kind != OperationKind::matmul_weight_gradient) return;
  const TensorView& gradient = seen.outputs[0];
  ASSERT_EQ(gradient.dtype, DType::fp32);
  gradient.as<float>()[gradient.shape.elements() - 1] = std::numeric_limits<float>::infinity();
}

// On rank `spoilt` every gradient of a matrix has an infinite element in the third step.
std::vector<OverflowRun> run_with_overflow(EngineOptions options, int spoilt, Gathered& weights) {
  const auto ranks = static_cast<size_t>(options.compile.layout.mesh.ranks());
  options.micro_batch_counts = {2};
  std::vector<OverflowRun> runs(ranks);
  on_engines(options, 4, [&](Engine& engine, const BatchPart& part, int rank) {
    OverflowRun& run = runs[static_cast<size_t>(rank)];
    LossScaler scaler({.initial = 1024}, true);
    int64_t updates = 0;
    for (int64_t step = 0; step < 5; ++step) {
      engine.set_loss_scale(scaler.scale());
      run.scales.push_back(scaler.scale());
      const std::vector<Batch> batches{
          part_of(batch_of({8 * step, 8 * step + 1, 8 * step + 2, 8 * step + 3}), part),
          part_of(batch_of({8 * step + 4, 8 * step + 5, 8 * step + 6, 8 * step + 7}), part)};
      if (step == 2) run.before = bytes_of(engine.state());
      const StepResult result = step == 2 && rank == spoilt
                                    ? engine.observed_step(batches, step, updates, 1e-2, spoil)
                                    : engine.train_step(batches, step, updates, 1e-2);
      if (step == 2) run.after = bytes_of(engine.state());
      EXPECT_TRUE(std::isfinite(result.loss));
      scaler.update(scaler.overflowed(result.loss, result.gradient_norm));
      run.skipped.push_back(result.skipped);
      run.norms.push_back(result.gradient_norm);
      updates += result.skipped ? 0 : 1;
    }
    run.end = bytes_of(engine.state());
    weights.add(engine.weights());
  });
  return runs;
}

// What one rank of a mesh alone has of gradients overflows. All ranks leave the step out, to the bit, halve
// the scale once, and go on as one rank does that had the same.
TEST(GradientOverflow, P38_OnOneRankIsLeftOutByAll) {
  Gathered one_rank;
  const OverflowRun one = run_with_overflow(tiny_options(Precision::fp16), 0, one_rank)[0];
  ASSERT_EQ(one.skipped, (std::vector<bool>{false, false, true, false, false}));
  struct Layout {
    int32_t replica, shard, tensor, zero;
  };
  for (const Layout& layout :
       {Layout{2, 1, 1, 0}, Layout{1, 2, 1, 0}, Layout{1, 2, 1, 1}, Layout{1, 2, 1, 2}, Layout{1, 2, 1, 3},
        Layout{1, 1, 2, 0}, Layout{2, 2, 1, 3}, Layout{1, 2, 2, 2}}) {
    EngineOptions options = tiny_options(Precision::fp16);
    options.compile.layout.mesh.sizes = {1, layout.replica, layout.shard, 1, layout.tensor, 1, 1};
    options.compile.zero_stage = layout.zero;
    const auto ranks = static_cast<int>(options.compile.layout.mesh.ranks());
    const int spoilt = layout.replica == 1 ? ranks - 1 : 0;
    SCOPED_TRACE(fmt::format("replica {} shard {} tensor {} zero {}", layout.replica, layout.shard,
                             layout.tensor, layout.zero));
    Gathered many;
    for (const OverflowRun& run : run_with_overflow(options, spoilt, many)) {
      EXPECT_EQ(run.skipped, one.skipped);
      EXPECT_EQ(run.scales, one.scales);
      EXPECT_EQ(run.before, run.after);
      EXPECT_NE(run.after, run.end);
      for (const size_t step : {0U, 1U, 3U, 4U})
        EXPECT_NEAR(run.norms[step], one.norms[step], 1e-2 * one.norms[step]) << step;
    }
    EXPECT_LE(largest_difference(one_rank, many), 2e-2);
  }
}

// A bit of a weight turns on one of four ranks; five steps on the check names weight and rank.
TEST(Replicas, P24_ABitThatTurnsIsFound) {
  EngineOptions options = on(tiny_options(Precision::fp32), Axis::replica, 4);
  for (const std::string& error : run_rank_threads(4, [&](Communicator& communicator) {
         EngineOptions own = options;
         own.communicator = &communicator;
         Engine engine(own);
         engine.allocate();
         engine.initialise();
         RankMessages messages(&communicator);
         const BatchPart part = batch_part(own.model, own.compile.layout, communicator.rank(), 1, length);
         for (int64_t step = 0; step < 5; ++step) {
           if (step == 3 && communicator.rank() == 2) {
             for (const NamedTensor& tensor : engine.weights()) {
               if (tensor.name == "block.1.mlp.up.weight") tensor.bytes[40] ^= std::byte{1};
             }
           }
           const std::vector<int64_t> ids{4 * step, 4 * step + 1, 4 * step + 2, 4 * step + 3};
           engine.train_step(std::vector<Batch>{part_of(batch_of(ids), part)}, step, step, 1e-3);
         }
         check_replicas(messages, engine.state(), 5);
       })) {
    EXPECT_EQ(
        error,
        "step 5: ranks that must hold the same weights do not: block.1.mlp.up.weight on rank 2 (of ranks "
        "0, 1, 2, 3)");
  }
}

// After a step that fills all buffers, one without any valid token: gradients are zero to the bit, and no
// weight changes.
TEST(GatheredWeights, P43_LeaveNothingInTheGradients) {
  for (const int32_t zero : {1, 2, 3}) {
    for (const int32_t window : {1, 2}) {
      EngineOptions options = on(tiny_options(Precision::bf16), Axis::shard, 2, zero);
      options.micro_batch_counts = {2};
      options.compile.gather_window = window;
      on_engines(options, 2, [&](Engine& engine, const BatchPart& part, int) {
        engine.train_step(
            std::vector<Batch>{part_of(batch_of({0, 1}), part), part_of(batch_of({2, 3}), part)}, 0, 0, 1e-2);
        const auto before = elements_of(engine.state());
        const Batch none = part_of(batch_of({4, 5}, {0, 0}), part);
        const StepResult result = engine.train_step(std::vector<Batch>{none, none}, 1, 1, 1e-2);
        EXPECT_TRUE(result.skipped);
        EXPECT_EQ(result.gradient_norm, 0);
        for (const auto& [name, elements] : elements_of(engine.gradients())) {
          for (const auto& [index, value] : elements) ASSERT_EQ(value, 0) << name << " " << index;
        }
        EXPECT_EQ(elements_of(engine.state()), before);
      });
    }
  }
}

// With and without decay, all else equal: matrices and embeddings differ by rate x decay x weight, norms and
// biases by nothing, wherever buckets are cut.
TEST(WeightDecay, P133_GoesByRoleInEveryLayout) {
  for (const int32_t zero : {0, 1, 2, 3}) {
    Gathered before, with, without;
    for (const double decay : {0.0, 0.1}) {
      EngineOptions options = on(tiny_options(), Axis::shard, 3, zero);
      options.compile.layout.mesh.sizes[static_cast<size_t>(Axis::tensor)] = 2;
      options.compile.optimizer.weight_decay = decay;
      on_engines(options, 3, [&](Engine& engine, const BatchPart& part, int) {
        if (decay == 0) before.add(engine.weights());
        engine.train_step(std::vector<Batch>{part_of(batch_of({0, 1, 2}), part)}, 0, 0, 0.5);
        (decay == 0 ? without : with).add(engine.weights());
      });
    }
    for (const auto& [name, elements] : before.values()) {
      const bool decays = name.ends_with(".weight") && name.find("norm") == std::string::npos;
      for (const auto& [index, weight] : elements) {
        const double difference = without.values().at(name).at(index) - with.values().at(name).at(index);
        ASSERT_NEAR(difference, decays ? 0.5 * 0.1 * weight : 0, 1e-12) << name << " " << index;
      }
    }
  }
}

}  // namespace
}  // namespace athanor
