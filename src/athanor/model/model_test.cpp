#include "athanor/model/model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <set>

#include "athanor/base/error.h"

namespace athanor {
namespace {

ModelConfig tiny(const std::string& family) {
  ModelConfig config = family_defaults(family);
  config.layers = 4;
  config.width = 8;
  config.heads = 4;
  config.key_value_heads = 2;
  config.vocabulary = 11;
  config.maximum_positions = 16;
  return config;
}

int64_t count_of(const Graph& graph, OperationKind kind) {
  int64_t count = 0;
  for (const Operation& operation : graph.operations) count += operation.kind == kind ? 1 : 0;
  return count;
}

TEST(Model, GraphsOfBothFamiliesPassTheVerifierAndPrintBack) {
  for (const char* family : {"gpt2", "llama"}) {
    const Model model = build_model(tiny(family), {ModelPurpose::train, 2, 16});
    ASSERT_EQ(model.blocks.size(), 1U);
    for (const Graph* graph : {&model.embedding, &model.blocks.front(), &model.head}) {
      verify(*graph);
      EXPECT_EQ(parse_graph(to_text(*graph)), *graph);
    }
  }
}

TEST(Model, LayersOfOneWindowShareTheirGraph) {
  ModelConfig config = tiny("llama");
  config.window_pattern = {4, 4, 0};
  const Model model = build_model(config, {ModelPurpose::train, 1, 16});
  ASSERT_EQ(model.blocks.size(), 2U);
  EXPECT_EQ(model.block_kind, (std::vector<int32_t>{0, 0, 1, 0}));
  const auto window_of = [](const Graph& graph) {
    for (const Operation& operation : graph.operations) {
      if (operation.kind == OperationKind::attention) return operation.attributes.window;
    }
    return int64_t{-1};
  };
  EXPECT_EQ(window_of(model.blocks[0]), 4);
  EXPECT_EQ(window_of(model.blocks[1]), 0);
}

TEST(Model, ParallelBlockHasOneNormForBothBranches) {
  ModelConfig config = tiny("gpt2");
  EXPECT_EQ(
      count_of(build_model(config, {ModelPurpose::train, 1, 16}).blocks.front(), OperationKind::layer_norm),
      2);
  config.parallel_block = true;
  EXPECT_EQ(
      count_of(build_model(config, {ModelPurpose::train, 1, 16}).blocks.front(), OperationKind::layer_norm),
      1);
  for (const BucketTable& table : bucket_tables(config)) {
    for (const BucketMember& member : table.members) {
      EXPECT_EQ(member.name.find("mlp_norm"), std::string::npos) << member.name;
    }
  }
}

TEST(Model, ValidationLeavesOutWhatOnlyTrainingHas) {
  ModelConfig config = tiny("gpt2");
  config.dropout = 0.1;
  config.label_smoothing = 0.1;
  config.z_loss = 1e-3;
  const Model model = build_model(config, {ModelPurpose::score, 1, 16});
  EXPECT_EQ(count_of(model.blocks.front(), OperationKind::dropout), 0);
  for (const Operation& operation : model.head.operations) {
    if (operation.kind != OperationKind::cross_entropy) continue;
    EXPECT_EQ(operation.attributes.label_smoothing, 0);
    EXPECT_EQ(operation.attributes.z_loss, 0);
  }
  EXPECT_GT(
      count_of(build_model(config, {ModelPurpose::train, 1, 16}).blocks.front(), OperationKind::dropout), 0);
}

// Fusion takes query, key, value and gate, up as one product each, so they must be neighbours.
TEST(Model, ProductsOfOneInputAreNeighboursInTheirBucket) {
  ModelConfig config = tiny("llama");
  config.bias = true;
  const BucketTable block = bucket_tables(config)[1];
  const auto expect_neighbours = [&](const std::string& first, const std::string& second) {
    for (size_t i = 0; i + 1 < block.members.size(); ++i) {
      if (block.members[i].name != "block.0." + first) continue;
      EXPECT_EQ(block.members[i + 1].name, "block.0." + second);
      EXPECT_EQ(block.members[i].offset + block.members[i].length(), block.members[i + 1].offset);
      return;
    }
    ADD_FAILURE() << first;
  };
  for (const char* part : {".weight", ".bias"}) {
    expect_neighbours(std::string("attention.query") + part, std::string("attention.key") + part);
    expect_neighbours(std::string("attention.key") + part, std::string("attention.value") + part);
    expect_neighbours(std::string("mlp.gate") + part, std::string("mlp.up") + part);
  }
}

TEST(Model, InitialDeviationsAreAsStated) {
  const ModelConfig config = tiny("gpt2");
  std::set<std::string> names;
  for (const BucketTable& table : bucket_tables(config)) {
    int64_t end = 0;
    for (const BucketMember& member : table.members) {
      EXPECT_TRUE(names.insert(member.name).second) << member.name;
      EXPECT_EQ(member.offset, end) << member.name;
      end += member.length();
      const bool into_residual = member.name.find("attention.output.weight") != std::string::npos ||
                                 member.name.find("mlp.down.weight") != std::string::npos;
      switch (member.role) {
        case ParameterRole::matrix:
          EXPECT_DOUBLE_EQ(member.initial_deviation, into_residual ? 0.02 / std::sqrt(8.0) : 0.02)
              << member.name;
          break;
        case ParameterRole::embedding:
          EXPECT_DOUBLE_EQ(member.initial_deviation, 0.02);
          break;
        case ParameterRole::norm:
          EXPECT_EQ(member.initial_mean, 1);
          EXPECT_EQ(member.initial_deviation, 0);
          break;
        case ParameterRole::bias:
          EXPECT_EQ(member.initial_mean, 0);
          EXPECT_EQ(member.initial_deviation, 0);
          break;
      }
    }
  }
}

TEST(Model, RefusesWhatCannotBeBuilt) {
  const std::vector<std::pair<const char*, std::function<void(ModelConfig&)>>> cases = {
      {"width", [](ModelConfig& c) { c.width = 9; }},
      {"key_value_heads", [](ModelConfig& c) { c.key_value_heads = 3; }},
      {"head_dim", [](ModelConfig& c) { c.positions = PositionKind::rotary, c.head_dim = 7; }},
      {"dropout", [](ModelConfig& c) { c.dropout = 1; }},
      {"layers", [](ModelConfig& c) { c.layers = 0; }},
      {"window", [](ModelConfig& c) { c.window = -1; }},
      {"rope_factor", [](ModelConfig& c) { c.rope_factor = 0; }},
      {"z_loss", [](ModelConfig& c) { c.z_loss = -1; }},
  };
  for (const auto& [option, spoil] : cases) {
    ModelConfig config = tiny("gpt2");
    spoil(config);
    try {
      validate(config);
      ADD_FAILURE() << option << " was not refused";
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::user);
      EXPECT_NE(error.message().find(option), std::string::npos) << error.message();
      EXPECT_FALSE(error.hint().empty()) << option;
    }
  }
  EXPECT_THROW(family_defaults("bert"), Error);
  EXPECT_THROW(build_model(tiny("gpt2"), {ModelPurpose::train, 1, 17}),
               Error);  // more tokens than learned positions
}

}  // namespace
}  // namespace athanor
