// Layout invariance of whole training steps: losses, gradient norms and weights after three steps are those
// of one device, to 1e-12 of the largest magnitude of their kind.

#include <gtest/gtest.h>

#include <cmath>

#include "athanor/base/error.h"
#include "athanor/base/labels.h"
#include "athanor/compile/assemble.h"
#include "athanor/compile/bucket_graphs.h"
#include "athanor/model/test_models.h"
#include "support/virtual_training.h"

namespace athanor {
namespace {

constexpr double tolerance = 1e-12;

ModelConfig tiny(const std::string& family) {
  ModelConfig config = odd_model(family, 2, 16);
  config.dropout = 0.1;
  config.label_smoothing = 0.1;
  config.query_key_norm = family == "llama";
  return config;
}

struct Outcome {
  std::vector<StepOutcome> steps;
  Wholes weights;
};

Outcome train(const ModelConfig& config, const SegmentInputs& inputs, const TrainingOptions& options) {
  VirtualTraining training(config, inputs, options);
  Outcome outcome;
  for (int step = 0; step < 3; ++step) outcome.steps.push_back(training.step());
  outcome.weights = training.weights();
  // The gradient of a key bias is zero but for rounding, which the optimizer amplifies.
  std::erase_if(outcome.weights, [](const auto& entry) { return entry.first.ends_with("key.bias"); });
  return outcome;
}

double largest_difference(const Wholes& expected, const Wholes& actual) {
  double largest = 0, difference = 0;
  for (const auto& [name, whole] : expected) {
    const Whole& other = actual.at(name);
    for (size_t i = 0; i < whole.values.size(); ++i) {
      largest = std::max(largest, std::abs(whole.values[i]));
      const double error = std::abs(whole.values[i] - other.values[i]);
      difference = std::isnan(error) ? INFINITY : std::max(difference, error);
    }
  }
  return difference / largest;
}

void expect_same(const Outcome& expected, const Outcome& actual) {
  for (size_t i = 0; i < expected.steps.size(); ++i) {
    const StepOutcome &a = expected.steps[i], &b = actual.steps[i];
    EXPECT_EQ(a.valid_tokens, b.valid_tokens);
    EXPECT_NEAR(a.loss, b.loss, tolerance * a.loss);
    EXPECT_NEAR(a.gradient_norm, b.gradient_norm, tolerance * a.gradient_norm);
  }
  EXPECT_LE(largest_difference(expected.weights, actual.weights), tolerance);
}

struct Sizes {
  int32_t replica = 1, shard = 1, context = 1, tensor = 1;
};

TrainingOptions options_of(const Sizes& sizes, bool cut, bool sequence_parallel, OptimizerKind optimizer) {
  TrainingOptions options;
  auto& mesh = options.layout.mesh.sizes;
  mesh[static_cast<size_t>(Axis::replica)] = sizes.replica;
  mesh[static_cast<size_t>(Axis::shard)] = sizes.shard;
  mesh[static_cast<size_t>(Axis::context)] = sizes.context;
  mesh[static_cast<size_t>(Axis::tensor)] = sizes.tensor;
  options.layout.sequence_parallel = sequence_parallel;
  options.cut_buckets = cut;
  options.optimizer.kind = optimizer;
  options.optimizer.maximum_norm = 0.5;
  return options;
}

class ShardedStep : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, ShardedStep, testing::Values("gpt2", "llama"));

TEST_P(ShardedStep, EveryLayoutTrainsTheSameModel) {
  const ModelConfig config = tiny(GetParam());
  const SegmentInputs inputs(config, 6, 9);
  for (const OptimizerKind optimizer : {OptimizerKind::adamw, OptimizerKind::lamb, OptimizerKind::sgd}) {
    const Outcome one = train(config, inputs, options_of({}, false, false, optimizer));
    const VirtualTraining untrained(config, inputs, options_of({}, false, false, optimizer));
    EXPECT_GT(largest_difference(one.weights, untrained.weights()), 1e-4);
    EXPECT_GT(one.steps[0].gradient_norm, 0.5);  // clipping has something to do
    for (const Sizes& sizes :
         {Sizes{.tensor = 2}, Sizes{.tensor = 3}, Sizes{.tensor = 4}, Sizes{.shard = 3}, Sizes{.context = 2},
          Sizes{.replica = 2, .shard = 3}, Sizes{.shard = 2, .tensor = 2}, Sizes{.shard = 3, .context = 2},
          Sizes{.replica = 2, .shard = 1, .context = 2, .tensor = 2}}) {
      for (const bool cut : {false, true}) {
        for (const bool sequence_parallel : {false, true}) {
          if (sequence_parallel && sizes.tensor == 1) continue;
          if (cut && sizes.shard == 1) continue;
          SCOPED_TRACE(
              fmt::format("replica {} shard {} context {} tensor {} cut {} sequence parallel {} optimizer {}",
                          sizes.replica, sizes.shard, sizes.context, sizes.tensor, cut, sequence_parallel,
                          static_cast<int>(optimizer)));
          expect_same(one, train(config, inputs, options_of(sizes, cut, sequence_parallel, optimizer)));
        }
      }
    }
  }
}

// All labels of one rank ignored: it adds nothing and takes part in everything.
TEST_P(ShardedStep, P08_ARankWithoutValidTokensAddsNothing) {
  const ModelConfig config = tiny(GetParam());
  SegmentInputs inputs(config, 2, 8);
  Whole& labels = inputs.values["labels"];
  for (size_t i = 8; i < 16; ++i) labels.values[i] = ignored_label;
  const Outcome one = train(config, inputs, options_of({}, false, false, OptimizerKind::adamw));
  expect_same(one, train(config, inputs, options_of({.shard = 2}, true, false, OptimizerKind::adamw)));
  for (double& label : labels.values) label = ignored_label;
  for (const bool cut : {false, true}) {
    VirtualTraining training(config, inputs, options_of({.shard = 2}, cut, false, OptimizerKind::adamw));
    const Wholes before = training.weights();
    EXPECT_EQ(training.step().valid_tokens, 0);
    EXPECT_EQ(largest_difference(before, training.weights()), 0);
  }
}

// ---- buckets by themselves

BucketTable two_members() {
  BucketTable table{.name = "b", .members = {}};
  table.members.push_back({.name = "cut", .shape = {1}});
  table.members.back().placements = placements_of(Axis::tensor, {.kind = PlacementKind::shard, .dim = 0});
  table.members.push_back({.name = "whole", .shape = {1}, .offset = 1});
  return table;
}

// A cut parameter with gradients 3 and 4, a whole one with 12 on both ranks: the norm is 13.
TEST(GradientNorm, P01_CountsAParameterThatEveryRankHoldsOnce) {
  LayoutOptions options;
  options.mesh = mesh_of(Axis::tensor, 2);
  const Layout layout{.options = options, .residual = {}, .batch = {}, .cache = {}, .parameters = {}};
  const StepInputs step;
  VirtualRanks norms(squared_norms_graph(two_members(), {DType::fp64, DType::fp64, DType::fp64}),
                     options.mesh);
  norms.set_local(0, "gradients.b", {3, 12});
  norms.set_local(1, "gradients.b", {4, 12});
  norms.run(step);
  VirtualRanks sums(sum_graph("norms", 2, {Axis::tensor}, layout), options.mesh);
  for (int rank = 0; rank < 2; ++rank) sums.set_local(rank, "norms.part", norms.get_local(rank, "norms"));
  sums.run(step);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(sums.get_local(rank, "norms"), (std::vector<double>{25, 144}));
  }
}

// A norm weight, a bias, a matrix and an embedding in one bucket, zero gradients, rate 1, decay 0.1: what
// decays is said by the table, wherever the bucket is cut.
TEST(BucketParts, P133_DecayGoesByMemberOnEveryPart) {
  BucketTable table{.name = "b", .members = {}};
  std::vector<double> weights, expected;
  for (const auto& [role, length] :
       {std::pair{ParameterRole::norm, 3}, std::pair{ParameterRole::matrix, 6},
        std::pair{ParameterRole::bias, 1}, std::pair{ParameterRole::embedding, 4}}) {
    const bool decays = role == ParameterRole::matrix || role == ParameterRole::embedding;
    table.members.push_back({.name = name_of(role),
                             .shape = {length},
                             .role = role,
                             .offset = table.length(),
                             .weight_decay = decays ? 0.1 : 0});
    for (int i = 0; i < length; ++i) {
      weights.push_back(1 + static_cast<double>(weights.size()));
      expected.push_back(decays ? weights.back() - 0.1 * weights.back() : weights.back());
    }
  }
  for (const int32_t ranks : {1, 2, 3, 5, 8, 16}) {
    LayoutOptions options;
    options.mesh = mesh_of(Axis::shard, ranks);
    const Layout layout{.options = options, .residual = {}, .batch = {}, .cache = {}, .parameters = {}};
    Graph graph = optimizer_graph(table, {}, {DType::fp64, DType::fp64, DType::fp64});
    if (ranks > 1) graph = on_bucket_part(std::move(graph), layout);
    verify(graph);
    VirtualRanks update(graph, options.mesh);
    const Shape whole{table.length()};
    for (const char* name : {"gradients.b", "first_moment.b", "second_moment.b"}) {
      update.set(name, {whole, std::vector<double>(weights.size(), 0)});
    }
    update.set("master.b", {whole, weights});
    update.set("clip_factor", {{1}, {1}});
    update.set("skip", {{1}, {0}});
    StepInputs step;
    step.learning_rate = 1;
    update.run(step);
    EXPECT_EQ(update.get("master.b", whole).values, expected) << ranks;
  }
}

// Seven values over eight ranks: the last has padding alone, and no more than the true length is anyone's.
TEST(BucketParts, P84_PaddingBelongsToNobody) {
  for (const int32_t ranks : {8, 3, 1}) {
    const Mesh mesh = mesh_of(Axis::shard, ranks);
    const Placements placements = placements_of(Axis::shard, {.kind = PlacementKind::shard, .dim = 0});
    Graph graph;
    graph.name = "bucket";
    graph.add_value({.name = "b",
                     .dtype = DType::fp64,
                     .shape = storage_shape({7}, placements, mesh),
                     .placements = placements});
    VirtualRanks stored(graph, mesh);
    const std::vector<double> values{1, 2, 3, 4, 5, 6, 7};
    stored.set("b", {{7}, values});
    EXPECT_EQ(stored.get("b", {7}).values, values);
    int64_t owned = 0;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto mine = owned_ranges({7}, placements, mesh, stored.coordinates(rank));
      for (const Range& range : mine[0]) owned += range.size();
    }
    EXPECT_EQ(owned, 7);
  }
}

}  // namespace
}  // namespace athanor
