#include "support/rank_engines.h"

#include <gtest/gtest.h>

#include <cmath>
#include <exception>
#include <limits>
#include <thread>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/comm/thread_transport.h"
#include "athanor/train/rank_layout.h"

namespace athanor {

namespace {

// One document ends in the middle of every other sample; the last label of a sample is not learned.
struct Token {
  int32_t id, label, position, document;
};

Token token_at(const RunPlan& plan, int64_t number, int64_t sample, int64_t s, int64_t real_length) {
  const int64_t vocabulary = plan.engine.model.vocabulary;
  const auto id = [&](int64_t at) {
    const uint64_t word = mix64(static_cast<uint64_t>((number * 1000 + sample) * 1000 + at));
    return static_cast<int32_t>(word % static_cast<uint64_t>(vocabulary));
  };
  if (s >= real_length) return {0, ignored_label, 0, 9};
  const bool split = plan.documents && sample % 2 == 1;
  const int64_t border = real_length / 2;
  const int32_t document = split && s >= border ? 1 : 0;
  const bool learned = s + 1 < real_length && (s + sample) % 5 != 4;
  return {id(s), learned ? id(s + 1) : ignored_label, static_cast<int32_t>(document == 1 ? s - border : s),
          document};
}

int64_t length_of(const RunPlan& plan) {
  return padded_sequence(plan.engine.compile.layout, plan.sequence_length);
}

struct RankState {
  std::unique_ptr<Engine> engine;
  std::vector<StepResult> steps;
  double validation = 0;
  std::exception_ptr error;
};

}  // namespace

Batch batch_of_rank(const RunPlan& plan, int64_t number, const Coordinates& coordinates) {
  const Layout layout = layout_of(plan.engine.model, plan.engine.compile.layout);
  const auto stored =
      stored_ranges({plan.samples, length_of(plan)}, layout.batch, layout.mesh(), coordinates);
  Batch batch;
  for (const Range& samples : stored[0]) {
    for (int64_t sample = samples.begin; sample < samples.end; ++sample) {
      batch.sample_ids.push_back(number * plan.samples + sample);
      ++batch.samples;
      for (const Range& range : stored[1]) {
        for (int64_t s = range.begin; s < range.end; ++s) {
          const Token token = token_at(plan, number, sample, s, plan.sequence_length);
          batch.token_ids.push_back(token.id);
          batch.labels.push_back(token.label);
          batch.positions.push_back(token.position);
          batch.documents.push_back(token.document);
          batch.indices.push_back(static_cast<int32_t>(s));
        }
      }
    }
  }
  batch.sequence_length = static_cast<int64_t>(batch.token_ids.size()) / std::max<int64_t>(batch.samples, 1);
  return batch;
}

EngineOptions tiny_engine(Precision precision, int64_t maximum_positions) {
  EngineOptions options;
  options.model = family_defaults("gpt2");
  options.model.layers = 2;
  options.model.width = 8;
  options.model.heads = 2;
  options.model.feed_forward = 12;
  options.model.vocabulary = 29;
  options.model.maximum_positions = maximum_positions;
  options.kernels = KernelSet::reference;
  options.threads = 1;
  options.compile.precision = precision;
  options.seed = 3;
  return options;
}

RankRun run_ranks(const RunPlan& plan) {
  const Mesh& mesh = plan.engine.compile.layout.mesh;
  const auto ranks = static_cast<int>(mesh.ranks());
  const int64_t parts = mesh.data_ranks();
  ATHANOR_ASSERT(plan.samples % parts == 0, "{} samples for {} ranks", plan.samples, parts);
  ThreadNetwork network(ranks);
  std::vector<RankState> states(static_cast<size_t>(ranks));
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int rank = 0; rank < ranks && ranks > 1; ++rank)
    communicators.push_back(
        make_communicator(network.attach(rank), {.timeout_ns = 60'000'000'000, .hosts = {}}));
  const auto run = [&](int rank) {
    RankState& state = states[static_cast<size_t>(rank)];
    try {
      EngineOptions options = plan.engine;
      options.threads = plan.threads;
      options.micro_batch = options.validation_micro_batch = plan.samples / parts;
      options.micro_batch_counts = {static_cast<int32_t>(plan.micro_batches)};
      options.sequence_length = length_of(plan);
      if (ranks > 1) options.communicator = communicators[static_cast<size_t>(rank)].get();
      state.engine = std::make_unique<Engine>(options);
      state.engine->allocate();
      state.engine->initialise();
      state.engine->set_loss_scale(plan.loss_scale);
      const Coordinates at = coordinates_of(mesh, rank);
      for (int step = 0; step < plan.steps; ++step) {
        std::vector<Batch> batches;
        for (int64_t m = 0; m < plan.micro_batches; ++m)
          batches.push_back(batch_of_rank(plan, step * plan.micro_batches + m, at));
        state.steps.push_back(state.engine->train_step(batches, step, step, plan.learning_rate));
      }
      state.validation = state.engine->evaluate(batch_of_rank(plan, 99, at)).loss_sum;
    } catch (...) {
      state.error = std::current_exception();
      if (ranks > 1) communicators[static_cast<size_t>(rank)]->abort("the test has ended");
    }
  };
  std::vector<std::thread> threads;
  for (int rank = 1; rank < ranks; ++rank) threads.emplace_back(run, rank);
  run(0);
  for (std::thread& thread : threads) thread.join();
  for (const RankState& state : states) {
    if (state.error != nullptr) std::rethrow_exception(state.error);
  }

  RankRun result;
  result.steps = states[0].steps;
  result.validation = {states[0].validation};
  for (const RankState& state : states) {
    for (size_t i = 0; i < result.steps.size(); ++i) {
      EXPECT_EQ(state.steps[i].loss, result.steps[i].loss) << "ranks have different losses";
      EXPECT_EQ(state.steps[i].gradient_norm, result.steps[i].gradient_norm);
    }
    EXPECT_EQ(state.validation, result.validation[0]);
    for (const NamedTensor& tensor : state.engine->weights()) {
      auto& whole = result.weights[tensor.name];
      whole.resize(static_cast<size_t>(tensor.shape.elements()), std::numeric_limits<double>::quiet_NaN());
      const size_t size = size_of(tensor.dtype);
      for (const StoredRun& run_of : tensor.runs) {
        for (int64_t i = 0; i < run_of.length; ++i) {
          const auto at = static_cast<size_t>(run_of.local_first + i) * size;
          const double value = float_at(tensor.dtype, tensor.bytes.subspan(at, size), 0);
          double& held = whole[static_cast<size_t>(run_of.global_first + i)];
          EXPECT_TRUE(std::isnan(held) || held == value) << tensor.name << ": copies differ";
          held = value;
        }
      }
    }
  }
  return result;
}

}  // namespace athanor
