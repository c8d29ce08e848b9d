#include "athanor/ir/graph.h"

#include <gtest/gtest.h>

#include <set>

#include "athanor/base/error.h"
#include "athanor/ir/test_graphs.h"

namespace athanor {
namespace {

TEST(Graph, FindsValuesByName) {
  const Graph graph = make_example_graph();
  EXPECT_EQ(graph.find("x"), 0);
  EXPECT_EQ(graph.value(graph.find("dhead")).role, Role::parameter_gradient);
  EXPECT_EQ(graph.find("y"), no_value);
}

TEST(Graph, OperationsCarryAbsentOptionalOperands) {
  GraphBuilder b("g");
  const ValueId x = b.input("x", {1, 2, 4}, Role::activation), weight = b.input("w", {3, 4}, Role::parameter);
  const Operation operation = b.add(OperationKind::matmul, {x, weight}, {b.value("y", {1, 2, 3})});
  EXPECT_EQ(operation.inputs, (std::vector<ValueId>{x, weight, no_value}));
  EXPECT_EQ(operation.outputs, (std::vector<ValueId>{2, no_value}));
  const auto types = types_of(b.graph, operation.inputs);
  ASSERT_EQ(types.size(), 3U);
  EXPECT_TRUE(types[1].present);
  EXPECT_EQ(types[1].shape, Shape({3, 4}));
  EXPECT_FALSE(types[2].present);
}

TEST(Graph, RolesHaveNames) {
  std::set<std::string> names;
  for (int i = 0; i < role_count; ++i) names.insert(name_of(static_cast<Role>(i)));
  EXPECT_EQ(names.size(), static_cast<size_t>(role_count));
  EXPECT_STREQ(name_of(Role::working), "working");
  EXPECT_STREQ(name_of(ParameterRole::bias), "bias");
}

// ---- text

// Reviewed by people: a change here changes every golden text.
TEST(GraphText, IsReadable) {
  EXPECT_EQ(to_text(make_example_graph()), R"(graph example {
  table 0 block {
    block.{layer}.up.weight: matrix [8,8] at 0 weight_decay=0.1 initial_deviation=0.02
    block.{layer}.up.bias: bias [8] at 64
    head.weight: matrix [11,8] at 72 learning_rate_factor=0.5
  }
  region 0 logits: rows=8 chunk_rows=3
  input %0 x: fp32 [2,4,8] residual
  input %1 labels: int32 [2,4] batch
  input %2 block.{layer}.up.weight: fp32 [8,8] parameter
  input %3 block.{layer}.up.bias: fp32 [8] parameter
  input %4 norm.weight: fp32 [8] parameter
  input %5 head.weight: fp32 [11,8] parameter
  input %6 valid_tokens: fp64 [1] scalar
  input %7 gradient.bucket: fp32 [160] bucket_gradient
  input %8 clip_factor: fp64 [1] scalar
  input %9 skip: fp64 [1] scalar
  input %10 master: fp32 [160] master
  input %11 first_moment: fp32 [160] optimizer_state
  input %12 second_moment: fp32 [160] optimizer_state
  %13 normed: fp32 [2,4,8] activation, %14 rstd: fp32 [2,4] statistic, - = rms_norm(%0, %4, -) epsilon=1e-06 part=forward
  %15 up: fp32 [2,4,8] activation, %16 activated: fp32 [2,4,8] activation = matmul(%13, %2, %3) activation=gelu part=forward
  loop 0 {
    %17 rows: fp32 [1,3,8] activation = chunk(%16) region=0 part=forward
    %18 row_labels: int32 [1,3] batch = chunk(%1) region=0 part=forward
    %19 logits: fp32 [1,3,11] activation, - = matmul(%17, %5, -) part=forward
    %20 loss: fp32 [1,3] statistic, %21 dlogits: fp32 [1,3,11] activation_gradient = cross_entropy(%19, %18, %6) part=forward
    %25 total_loss: fp64 [1] scalar = sum(%20) part=forward
    %22 drows: fp32 [1,3,8] activation_gradient = matmul_input_gradient(%21, %5, -) part=input_gradient
    %23 dactivated: fp32 [2,4,8] activation_gradient = collect(%22) region=0 part=input_gradient
    %24 dhead: fp32 [11,8] parameter_gradient = matmul_weight_gradient(%21, %17) part=weight_gradient
  }
  %26 dup: fp32 [2,4,8] activation_gradient = gelu_gradient(%23, %15) part=input_gradient
  %27 dnormed: fp32 [2,4,8] activation_gradient = matmul_input_gradient(%26, %2, -) part=input_gradient
  %28 dup.weight: fp32 [8,8] parameter_gradient = matmul_weight_gradient(%26, %13) part=weight_gradient
  %28 = matmul_weight_gradient(%27, %0) part=weight_gradient
  %29 dx: fp32 [2,4,8] residual_gradient = rms_norm_input_gradient(%27, %0, %4, %14, %23) part=input_gradient
  %10, %11, %12, -, - = adamw(%7, %8, %9) table=0 beta2=0.99 part=update
  output %29
  output %28
  output %24
  output %25
  output %10
  output %11
  output %12
}
)");
}

TEST(GraphText, PlacementsPrintWhenNotReplicated) {
  Graph graph = make_example_graph();
  graph.value(0).placements[static_cast<size_t>(Axis::context)] = {
      .kind = PlacementKind::shard, .dim = 1, .pattern = ShardPattern::zigzag};
  EXPECT_NE(to_text(graph).find("  input %0 x: fp32 [2,4,8] {context:shard(1 zigzag)} residual\n"),
            std::string::npos);
  EXPECT_EQ(parse_graph(to_text(graph)), graph);
}

TEST(GraphText, ParsesBackWhateverTheGraphHolds) {
  EXPECT_EQ(parse_graph(to_text(make_example_graph())), make_example_graph());
  EXPECT_EQ(parse_graph(to_text(Graph{})), Graph{});
  std::mt19937_64 random(1);
  for (int i = 0; i < 2000; ++i) {
    const Graph graph = make_random_graph(random);
    const std::string text = to_text(graph);
    const Graph parsed = parse_graph(text);
    ASSERT_EQ(parsed, graph) << text << to_text(parsed);
  }
}

TEST(GraphText, FaultsNameTheLine) {
  const auto message = [](const std::string& text) -> std::string {
    try {
      parse_graph(text);
    } catch (const Error& error) {
      return error.kind() == ErrorKind::user ? error.message() : "not a user error";
    }
    return "parsed";
  };
  const std::string x = "input %0 x: fp32 [2,4] activation\n";
  EXPECT_EQ(message(""), "graph, line 0: the text ends within the graph");
  EXPECT_EQ(message("graf g {\n}\n"), "graph, line 1: 'graph' is expected before 'graf g {'");
  EXPECT_EQ(message("graph g {\n" + x), "graph, line 2: the text ends within the graph");
  EXPECT_EQ(message("graph g {\n}\n\nmore"), "graph, line 4: text after the end of the graph");
  EXPECT_EQ(message("graph g {\ninput %0 x: fp33 [2,4] activation\n}"),
            "graph, line 2: 'fp33' is not a dtype");
  EXPECT_EQ(message("graph g {\ninput %0 x: fp32 2,4 activation\n}"), "graph, line 2: '2' is not a shape");
  EXPECT_EQ(message("graph g {\ninput %0 x: fp32 [2] {tensor:shard} activation\n}"),
            "graph, line 2: '{tensor:shard}' are not placements");
  EXPECT_EQ(message("graph g {\ninput %0 x: fp32 [2] weight\n}"), "graph, line 2: 'weight' is not a role");
  EXPECT_EQ(message("graph g {\ninput %1 x: fp32 [2] master\n}"), "graph, line 3: value %0 is not declared");
  EXPECT_EQ(message("graph g {\ninput %99999999 x: fp32 [2] master\n}"),
            "graph, line 2: value %99999999 is out of range");
  EXPECT_EQ(message("graph g {\n" + x + "\n%1 y: fp32 [2,4] activation = gelu(%2) part=forward\n}"),
            "graph, line 4: value %2 is not declared before");
  EXPECT_EQ(message("graph g {\n" + x + "%1 y: fp32 [2,4] activation = gelo(%0) part=forward\n}"),
            "graph, line 3: 'gelo' is not an operation");
  EXPECT_EQ(message("graph g {\n" + x + "%1 y: fp32 [2,4] activation = gelu(%0) epsilon=2 part=forward\n}"),
            "graph, line 3: gelu has no attribute epsilon=2");
  EXPECT_EQ(message("graph g {\n" + x + "%1 y: fp32 [2,4] activation = gelu(%0) window=x\n}"),
            "graph, line 3: 'window=x' is not an attribute");
  EXPECT_EQ(message("graph g {\n" + x + "%1 y: fp32 [2,4] activation = gelu(%0) part=sideways\n}"),
            "graph, line 3: 'sideways' is not a part");
  EXPECT_EQ(message("graph g {\nloop 0 {\n}\n}"), "graph, line 2: there is no region 0");
  EXPECT_EQ(message("graph g {\ntable 1 t {\n}\n}"), "graph, line 2: number 0 is expected");
  EXPECT_EQ(message("graph g {\ntable 0 t {\nw: tensor [2] at 0\n}\n}"),
            "graph, line 3: 'tensor' is not a parameter role");
  EXPECT_EQ(message("graph g {\n" + x + "output %0 %0\n}"), "graph, line 3: '%0' is left over");
  EXPECT_EQ(message("graph \"g {\n}"), "graph, line 1: '\"g {' is not a name");
}

TEST(GraphText, DamagedTextNeverCrashes) {
  const std::string text = to_text(make_example_graph());
  std::mt19937_64 random(2);
  static constexpr std::string_view characters = "%0123456789-=,:()[]{}\"\\ \nabcxyz.<";
  int parsed = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string damaged = text;
    for (uint64_t edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % damaged.size();
      const uint64_t choice = random() % 3;
      const char character = characters[random() % characters.size()];
      if (choice == 0) damaged[at] = character;
      if (choice == 1) damaged.insert(at, 1, character);
      if (choice == 2) damaged.erase(at, 1 + random() % 5);
    }
    try {
      const Graph graph = parse_graph(damaged);
      ++parsed;
      ASSERT_EQ(parse_graph(to_text(graph)), graph);
      verify(graph);
    } catch (const Error&) {  // either of the parser, or of the verifier
    }
  }
  EXPECT_GT(parsed, 100);  // renamed values, for one, still parse
}

}  // namespace
}  // namespace athanor
