// What sharding must not change: every layout of a segment gives the numbers of one device, forward and
// backward, to 1e-12 of the largest magnitude of their kind.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "athanor/base/error.h"
#include "athanor/base/labels.h"
#include "athanor/model/test_models.h"
#include "support/sharded_segments.h"

namespace athanor {
namespace {

constexpr double tolerance = 1e-12;

// 11 tokens divide no better than the model.
ModelConfig tiny(const std::string& family) {
  return odd_model(family, 4, 32);
}

// Every feature of each family.
ModelConfig full(const std::string& family) {
  ModelConfig config = tiny(family);
  config.dropout = 0.2;
  config.window = 5;
  config.label_smoothing = 0.1;
  config.z_loss = 0.01;
  config.logit_soft_cap = 3;
  config.query_key_norm = family == "llama";
  return config;
}

struct Sizes {
  int32_t replica = 1, shard = 1, context = 1, tensor = 1;
};

LayoutOptions layout(const Sizes& sizes, bool sequence_parallel = false,
                     ContextForm form = ContextForm::ring) {
  LayoutOptions options;
  options.mesh.sizes[static_cast<size_t>(Axis::replica)] = sizes.replica;
  options.mesh.sizes[static_cast<size_t>(Axis::shard)] = sizes.shard;
  options.mesh.sizes[static_cast<size_t>(Axis::context)] = sizes.context;
  options.mesh.sizes[static_cast<size_t>(Axis::tensor)] = sizes.tensor;
  options.sequence_parallel = sequence_parallel;
  options.context_form = form;
  return options;
}

std::string text_of(const SegmentOptions& options) {
  std::string text;
  for (const Axis axis : {Axis::replica, Axis::shard, Axis::context, Axis::tensor}) {
    text += fmt::format("{} {} ", name_of(axis), options.layout.mesh.size(axis));
  }
  return text + (options.layout.sequence_parallel ? "sequence parallel " : "") +
         (options.layout.context_form == ContextForm::ring ? "ring" : "all to all");
}

StepInputs step_inputs() {
  StepInputs step;
  step.seed = 5;
  step.step = 3;
  return step;
}

// A model's segments on one device, and comparisons with them.
class OneDevice {
 public:
  explicit OneDevice(const ModelConfig& config, int64_t samples = 4, int64_t sequence_length = 11)
      : config_(config), inputs_(config, samples, sequence_length) {
    expected_ = run({}, inputs_);
  }

  void expect_same(const SegmentOptions& options) const {
    SCOPED_TRACE(text_of(options));
    const SegmentInputs inputs = inputs_.padded(sequence_granule(options.layout));
    const std::vector<Wholes> actual = run(options, inputs);
    for (size_t i = 0; i < expected_.size(); ++i) {
      std::string worst;
      EXPECT_LE(difference(expected_[i], actual[i], &worst), tolerance) << names[i] << ": " << worst;
    }
  }

  const Wholes& expected(size_t segment) const { return expected_[segment]; }

  static constexpr const char* names[] = {"embedding", "block", "head"};

 private:
  std::vector<Wholes> run(const SegmentOptions& options, const SegmentInputs& inputs) const {
    Model model = build_model(config_, {ModelPurpose::train, inputs.samples, inputs.sequence_length});
    std::vector<Wholes> results;
    for (Graph* graph : {&model.embedding, &model.blocks.front(), &model.head}) {
      results.push_back(
          ShardedSegment(config_, std::move(*graph), options).run(inputs.values, step_inputs()));
    }
    return results;
  }

  ModelConfig config_;
  SegmentInputs inputs_;
  std::vector<Wholes> expected_;
};

class Sharding : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Families, Sharding, testing::Values("gpt2", "llama"));

TEST_P(Sharding, TensorAxisChangesNothing) {
  const OneDevice one(full(GetParam()));
  for (const int32_t tensor : {2, 3, 4, 8}) {
    for (const bool sequence_parallel : {false, true}) {
      one.expect_same({.layout = layout({.tensor = tensor}, sequence_parallel)});
    }
  }
}

TEST_P(Sharding, ContextAxisChangesNothing) {
  const OneDevice one(full(GetParam()));
  for (const int32_t context : {2, 3, 4}) {
    for (const ContextForm form : {ContextForm::ring, ContextForm::all_to_all}) {
      one.expect_same({.layout = layout({.context = context}, false, form)});
    }
  }
}

TEST_P(Sharding, DataAxesChangeNothing) {
  const OneDevice one(full(GetParam()));
  for (const Sizes& sizes : {Sizes{.replica = 2}, Sizes{.shard = 4}, Sizes{.replica = 2, .shard = 2}}) {
    one.expect_same({.layout = layout(sizes)});
  }
}

TEST_P(Sharding, AxesTogetherChangeNothing) {
  const OneDevice one(full(GetParam()));
  for (const Sizes& sizes :
       {Sizes{.context = 2, .tensor = 2}, Sizes{.context = 3, .tensor = 2}, Sizes{.context = 2, .tensor = 3},
        Sizes{.shard = 2, .tensor = 2}, Sizes{.replica = 2, .context = 2, .tensor = 2},
        Sizes{.replica = 2, .shard = 2, .context = 2}}) {
    for (const bool sequence_parallel : {false, true}) {
      for (const ContextForm form : {ContextForm::ring, ContextForm::all_to_all}) {
        one.expect_same({.layout = layout(sizes, sequence_parallel, form)});
      }
    }
  }
}

// Chunks of the head and recomputation work on local graphs.
TEST_P(Sharding, ChunksAndRecomputationChangeNothing) {
  const OneDevice one(full(GetParam()));
  const LayoutOptions mesh = layout({.context = 2, .tensor = 2}, true);
  for (const Recompute recompute : {Recompute::selective, Recompute::full}) {
    one.expect_same({.layout = mesh, .recompute = recompute, .head_chunk_tokens = 5});
  }
}

// Each feature with and without, over a layout that has everything and one that pads heads.
TEST_P(Sharding, EveryFeatureHolds) {
  const auto change = [](ModelConfig& config, int feature) {
    switch (feature) {
      case 0:
        config.parallel_block = true;
        return "parallel block";
      case 1:
        config.bias = !config.bias;
        return "bias";
      case 2:
        config.tied_head = !config.tied_head;
        return "tied head";
      case 3:
        config.key_value_heads = 4;
        return "as many key heads as query heads";
      case 4:
        config.heads = 6;
        config.key_value_heads = 1;
        return "one key head";
      case 5:
        config.query_key_norm = !config.query_key_norm;
        return "query and key norms";
      case 6:
        config.dropout = config.label_smoothing = config.z_loss = config.logit_soft_cap = 0;
        config.window = 0;
        return "plain loss and attention";
      case 7:
        config.feed_forward_kind = config.feed_forward_kind == FeedForwardKind::gelu ? FeedForwardKind::swiglu
                                                                                     : FeedForwardKind::gelu;
        return "the other feed-forward";
      default:
        config.heads = 3;
        config.key_value_heads = 3;
        config.vocabulary = 5;
        config.feed_forward = 3;
        return "fewer of everything than ranks";
    }
  };
  for (int feature = 0; feature < 9; ++feature) {
    ModelConfig config = full(GetParam());
    SCOPED_TRACE(change(config, feature));
    const OneDevice one(config);
    one.expect_same({.layout = layout({.tensor = 3})});
    one.expect_same({.layout = layout({.tensor = 4}, true)});
    one.expect_same({.layout = layout({.context = 2, .tensor = 2}, true)});
    one.expect_same({.layout = layout({.context = 2, .tensor = 2}, false, ContextForm::all_to_all)});
  }
}

// ---- what the passes insert

int64_t count_of(const Graph& graph, OperationKind kind) {
  return std::count_if(graph.operations.begin(), graph.operations.end(),
                       [kind](const Operation& operation) { return operation.kind == kind; });
}

ShardedSegment block_of(const ModelConfig& config, const LayoutOptions& options) {
  const int64_t granule = sequence_granule(options);
  return ShardedSegment(config, build_model(config, {ModelPurpose::train, 4, 2 * granule}).blocks.front(),
                        {.layout = options});
}

// As in Megatron: one all_reduce after attention, one after the MLP, and one for the gradient of each's
// input.
TEST(ShardedBlock, TensorAxisReducesTwiceEachWay) {
  const ShardedSegment block = block_of(tiny("llama"), layout({.tensor = 2}));
  EXPECT_EQ(count_of(block.forward(), OperationKind::all_reduce), 2);
  EXPECT_EQ(count_of(block.backward(), OperationKind::all_reduce), 2);
  for (const OperationKind kind : {OperationKind::all_gather, OperationKind::reduce_scatter,
                                   OperationKind::all_to_all, OperationKind::local_part}) {
    EXPECT_EQ(count_of(block.forward(), kind), 0) << name_of(kind);
    EXPECT_EQ(count_of(block.backward(), kind), 0) << name_of(kind);
  }
}

// Each all_reduce falls into a reduce_scatter and an all_gather; backward gathers the inputs of its weight
// gradients again.
TEST(ShardedBlock, SequenceParallelismGathersAndScatters) {
  const ShardedSegment block = block_of(tiny("llama"), layout({.tensor = 2}, true));
  EXPECT_EQ(count_of(block.forward(), OperationKind::all_gather), 2);
  EXPECT_EQ(count_of(block.forward(), OperationKind::reduce_scatter), 2);
  EXPECT_EQ(count_of(block.backward(), OperationKind::all_gather), 4);
  EXPECT_EQ(count_of(block.backward(), OperationKind::reduce_scatter), 2);
  for (const Graph* graph : {&block.forward(), &block.backward()}) {
    EXPECT_EQ(count_of(*graph, OperationKind::all_reduce), 0);
    EXPECT_EQ(count_of(*graph, OperationKind::all_to_all), 0);
  }
}

// The parallel block needs half of them.
TEST(ShardedBlock, ParallelBlockReducesOnceEachWay) {
  ModelConfig config = tiny("llama");
  config.parallel_block = true;
  const ShardedSegment block = block_of(config, layout({.tensor = 2}));
  EXPECT_EQ(count_of(block.backward(), OperationKind::all_reduce), 1);
}

// Products of one input stay one product on the local parts.
TEST(ShardedBlock, ProductsAreMergedAndFused) {
  const ShardedSegment block = block_of(tiny("gpt2"), layout({.tensor = 2}, true));
  EXPECT_EQ(count_of(block.forward(), OperationKind::matmul), 4);
  EXPECT_EQ(count_of(block.backward(), OperationKind::matmul_weight_gradient), 4);
  EXPECT_EQ(count_of(block.backward(), OperationKind::matmul_input_gradient), 4);
  EXPECT_EQ(count_of(block.forward(), OperationKind::gelu), 0);
}

TEST(ShardedBlock, KeysTravelTheRingOnceEachWay) {
  const ShardedSegment block = block_of(tiny("llama"), layout({.context = 4}));
  EXPECT_EQ(count_of(block.forward(), OperationKind::attention_part), 4);
  EXPECT_EQ(count_of(block.forward(), OperationKind::shift), 3);
  EXPECT_EQ(count_of(block.backward(), OperationKind::shift), 3 + 4);
}

// ---- known faults

// The norm weights of a block whose tokens are cut see a part of them each: their gradient is a sum that is
// still to be made, exactly once; parameters that are cut are whole in their part.
TEST(ShardedGradients, P17_NormWeightsOfACutSequenceAreSummedOverTheAxis) {
  ModelConfig config = tiny("gpt2");
  const auto tensor = static_cast<size_t>(Axis::tensor);
  for (const bool cut : {false, true}) {
    const ShardedSegment block = block_of(config, layout({.tensor = 2}, cut));
    for (const auto& [name, placements] : block.gradients()) {
      const PlacementKind kind = placements[tensor].kind;
      const bool whole = name.find("norm") != std::string::npos || name.ends_with("output.bias") ||
                         name.ends_with("down.bias");
      EXPECT_EQ(kind, !whole ? PlacementKind::shard
                      : cut  ? PlacementKind::partial
                             : PlacementKind::replicate)
          << name;
    }
  }
  // width 4, one norm, 4 tokens: the sum of what the two ranks have is what one device has.
  config.width = 4;
  const OneDevice one(config, 1, 4);
  one.expect_same({.layout = layout({.tensor = 2}, true)});
}

// Sums, not means; labels were made before the sequence was cut.
TEST(ShardedLoss, P10_ContextKeepsTheScaleOfLossAndGradients) {
  ModelConfig config = tiny("gpt2");
  const OneDevice one(config, 1, 8);
  for (const int32_t context : {2, 4}) one.expect_same({.layout = layout({.context = context})});
}

// A head whose logits are the residual stream itself.
Graph bare_head(int64_t vocabulary, double smoothing) {
  Graph graph;
  graph.name = "head";
  graph.tables.push_back(
      {.name = "head", .members = {{.name = "head.weight", .shape = {vocabulary, vocabulary}}}});
  const auto value = [&](const char* name, Shape shape, Role role, DType dtype = DType::fp32) {
    return graph.add_value({.name = name, .dtype = dtype, .shape = shape, .placements = {}, .role = role});
  };
  const ValueId x = value("residual_in", {1, 1, vocabulary}, Role::residual);
  const ValueId weight = value("head.weight", {vocabulary, vocabulary}, Role::parameter);
  const ValueId labels = value("labels", {1, 1}, Role::batch, DType::int32);
  const ValueId logits = value("logits", {1, 1, vocabulary}, Role::activation);
  const ValueId token_loss = value("token_loss", {1, 1}, Role::statistic);
  const ValueId loss = value("loss", {1}, Role::scalar, DType::fp64);
  graph.inputs = {x, weight, labels};
  graph.outputs = {loss};
  graph.add_operation(OperationKind::matmul, {x, weight}, {logits});
  graph.add_operation(OperationKind::cross_entropy, {logits, labels}, {token_loss},
                      {.label_smoothing = smoothing});
  graph.add_operation(OperationKind::sum, {token_loss}, {loss});
  return graph;
}

Wholes bare_inputs(const std::vector<double>& logits, int64_t label) {
  const auto size = static_cast<int64_t>(logits.size());
  Whole identity{{size, size}, std::vector<double>(static_cast<size_t>(size * size), 0)};
  for (int64_t i = 0; i < size; ++i) identity.values[static_cast<size_t>(i * size + i)] = 1;
  return {{"residual_in", {{1, 1, size}, logits}},
          {"head.weight", identity},
          {"labels", {{1, 1}, {static_cast<double>(label)}}},
          {"valid_tokens", {{1}, {1}}}};
}

// Partition functions of parts add up to that of the row, each column counted once; and the phases of a cut
// loss refuse rows that are not cut.
TEST(ShardedLoss, P11_PartitionFunctionOfEachColumnCountsOnce) {
  ModelConfig config = tiny("llama");
  ShardedSegment head(config, bare_head(4, 0), {.layout = layout({.tensor = 2})});
  const Wholes outputs = head.run(bare_inputs({0, 0, 0, 0}, 2), step_inputs());
  EXPECT_NEAR(outputs.at("loss").values[0], std::log(4.0), 1e-15);

  Graph whole_rows = head.forward();
  for (Value& value : whole_rows.values) {
    if (value.name.starts_with("logits")) value.placements = {};
  }
  EXPECT_THROW(verify(whole_rows), Error);
}

TEST(ShardedLoss, P12_SmoothingTakesTheMeanOfTheWholeVocabulary) {
  ModelConfig config = tiny("llama");
  const std::vector<double> logits{0, 1, 2, 3};
  double sum = 0;
  for (const double l : logits) sum += std::exp(l);
  const double z = std::log(sum), loss = 0.9 * (z - 3) + 0.1 * (z - 1.5);
  for (const int32_t tensor : {1, 2, 3, 4}) {
    ShardedSegment head(config, bare_head(4, 0.1), {.layout = layout({.tensor = tensor})});
    const Wholes outputs = head.run(bare_inputs(logits, 3), step_inputs());
    EXPECT_NEAR(outputs.at("loss").values[0], loss, 1e-14) << tensor;
    for (size_t i = 0; i < 4; ++i) {
      const double gradient = std::exp(logits[i] - z) - 0.025 - (i == 3 ? 0.9 : 0);
      EXPECT_NEAR(outputs.at("d.residual_in").values[i], gradient, 1e-14) << tensor;
    }
  }
}

// Five columns over three ranks: two each, and one of padding. It has no part in the softmax, whatever a
// logit of a padded row would be: every sum over ranks is that over five columns.
TEST(ShardedLoss, P85_PaddedColumnsAreNoPartOfTheSoftmax) {
  ModelConfig config = tiny("llama");
  for (const std::vector<double>& logits :
       {std::vector<double>{-5, -6, -7, -8, -9}, std::vector<double>{1, 2, 3, 4, 5}}) {
    double sum = 0;
    for (const double l : logits) sum += std::exp(l);
    for (const int32_t tensor : {3, 4, 8}) {
      ShardedSegment head(config, bare_head(5, 0), {.layout = layout({.tensor = tensor})});
      const Wholes outputs = head.run(bare_inputs(logits, 1), step_inputs());
      EXPECT_NEAR(outputs.at("loss").values[0], std::log(sum) - logits[1], 1e-14) << tensor;
    }
  }
}

// Prompts that are taken in parts: heads of the cache lie where the heads are, logits are whole rows on every
// rank.
TEST_P(Sharding, GenerationOnTheTensorAxisChangesNothing) {
  const ModelConfig config = full(GetParam());
  const CacheShape cache{.rows = 3, .capacity = 8, .longest_part = 3};
  SegmentInputs inputs(config, 2, 3);
  inputs.values["positions"] = {{2, 3}, {4, 5, 6, 2, 3, 4}};
  inputs.values["lengths"] = {{2}, {3, 2}};
  inputs.values["cache_rows"] = {{2}, {2, 0}};
  const Shape rows{3, 2, cache_slots(cache, config.window), 4};
  for (const char* name : {"block.{layer}.attention.key_cache", "block.{layer}.attention.value_cache"}) {
    Whole& past = inputs.values[name] = {rows, {}};
    for (int64_t i = 0; i < rows.elements(); ++i) past.values.push_back(std::sin(static_cast<double>(i)));
  }
  const auto generate = [&](const LayoutOptions& options) {
    Model model = build_model(config, {ModelPurpose::generate, 2, 3, cache});
    std::vector<Wholes> results;
    for (Graph* graph : {&model.embedding, &model.blocks.front(), &model.head}) {
      ShardedSegment segment(config, std::move(*graph), {.layout = options, .train = false});
      results.push_back(segment.run(inputs.values, step_inputs()));
    }
    return results;
  };
  const std::vector<Wholes> one = generate({});
  EXPECT_EQ(one[1].size(), 3U);  // residual_out and both caches
  EXPECT_EQ(one[2].at("logits").shape, Shape({2, 1, 23}));
  for (const int32_t tensor : {2, 3, 4}) {
    const std::vector<Wholes> actual = generate(layout({.tensor = tensor}));
    for (size_t i = 0; i < one.size(); ++i) {
      EXPECT_LE(difference(one[i], actual[i]), tolerance) << tensor << " " << i;
    }
  }
}

}  // namespace
}  // namespace athanor
