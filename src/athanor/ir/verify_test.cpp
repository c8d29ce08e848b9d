#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "athanor/base/error.h"
#include "athanor/ir/test_graphs.h"

namespace athanor {
namespace {

// What `verify` says of a graph; empty when it is in order.
std::string fault_of(const Graph& graph) {
  try {
    verify(graph);
  } catch (const Error& error) {
    return error.kind() == ErrorKind::stop_job ? error.message() : "another kind of error";
  }
  return "";
}

size_t index_of(const Graph& graph, OperationKind kind) {
  for (size_t i = 0; i < graph.operations.size(); ++i) {
    if (graph.operations[i].kind == kind) return i;
  }
  ADD_FAILURE() << "no " << name_of(kind);
  return 0;
}

Operation& operation(Graph& graph, OperationKind kind) {
  return graph.operations[index_of(graph, kind)];
}

void move_operation(Graph& graph, size_t from, size_t to) {
  Operation moved = graph.operations[from];
  graph.operations.erase(graph.operations.begin() + static_cast<std::ptrdiff_t>(from));
  graph.operations.insert(graph.operations.begin() + static_cast<std::ptrdiff_t>(to), std::move(moved));
}

TEST(Verify, AcceptsTheExample) {
  EXPECT_EQ(fault_of(make_example_graph()), "");
}

TEST(Verify, RefusesEachKindOfFault) {
  using enum OperationKind;
  struct Case {
    std::string fault;
    std::function<void(Graph&)> break_it;
  };
  const std::vector<Case> cases = {
      // ids and operand counts
      {"operation 1 (matmul): input x: there is no value %999",
       [](Graph& g) { operation(g, matmul).inputs[0] = 999; }},
      {"operation 1 (matmul): output y: there is no value %-2",
       [](Graph& g) { operation(g, matmul).outputs[0] = -2; }},
      {"operation 1 (matmul): 2 inputs where 3 are needed",
       [](Graph& g) { operation(g, matmul).inputs.pop_back(); }},
      {"operation 1 (matmul): 3 outputs where 2 are needed",
       [](Graph& g) { operation(g, matmul).outputs.push_back(no_value); }},
      {"operation 1 (matmul): input weight is absent",
       [](Graph& g) { operation(g, matmul).inputs[1] = no_value; }},
      {"output activated is the same value as another output",
       [](Graph& g) { operation(g, matmul).outputs[1] = operation(g, matmul).outputs[0]; }},
      {"graph example: the graph's inputs: there is no value %999",
       [](Graph& g) { g.inputs.push_back(999); }},
      {"graph example: the graph's outputs: there is no value %-1",
       [](Graph& g) { g.outputs.push_back(no_value); }},
      {"value %0 (x) is twice among the graph's inputs", [](Graph& g) { g.inputs.push_back(0); }},
      {"value %29 (dx) is twice among the graph's outputs",
       [](Graph& g) { g.outputs.push_back(g.outputs[0]); }},
      // order of writes and reads
      {"operation 0 (matmul): x: value %13 (normed) is read before it is written",
       [](Graph& g) { move_operation(g, 1, 0); }},
      {"y: value %13 (normed) is written twice",
       [](Graph& g) { g.operations.insert(g.operations.begin() + 1, g.operations[0]); }},
      {"y: value %0 (x) is written twice", [](Graph& g) { operation(g, rms_norm).outputs[0] = g.find("x"); }},
      {"dweight: value %28 (dup.weight) is added to after it was read",
       [](Graph& g) {
         const auto at = static_cast<std::ptrdiff_t>(index_of(g, gelu_gradient)) + 3;
         const ValueId sum =
             g.add_value({.name = "sum", .dtype = DType::fp64, .shape = {1}, .placements = {}});
         g.operations.insert(g.operations.begin() + at, {.kind = OperationKind::sum,
                                                         .attributes = {},
                                                         .inputs = {g.find("dup.weight")},
                                                         .outputs = {sum}});
       }},
      {"the graph's outputs: value %30 (never) is read before it is written",
       [](Graph& g) { g.outputs.push_back(g.add_value({.name = "never", .shape = {1}, .placements = {}})); }},
      {"(adamw): second_moment: value %30 (state) is updated but comes from nowhere",
       [](Graph& g) {
         operation(g, adamw).outputs[2] = g.add_value({.name = "state", .shape = {160}, .placements = {}});
       }},
      // shapes and attributes
      {"operation 1 (matmul): x is [2,4,8] where [2,4,9] is needed",
       [](Graph& g) { g.value(g.find("block.{layer}.up.weight")).shape = {8, 9}; }},
      {"operation 0 (rms_norm): it has no attribute window=5",
       [](Graph& g) { operation(g, rms_norm).attributes.window = 5; }},
      {"x [2,4,8] is sharded along dim 3",
       [](Graph& g) { g.value(0).placements[2] = {.kind = PlacementKind::shard, .dim = 3}; }},
      // dtypes
      {"labels: value %18 (row_labels) is fp32 where int32 is needed",
       [](Graph& g) {
         g.value(g.find("row_labels")).dtype = DType::fp32;
         g.value(g.find("labels")).dtype = DType::fp32;
       }},
      {"rstd: value %14 (rstd) is bf16 where fp32 or fp64 is needed",
       [](Graph& g) { g.value(g.find("rstd")).dtype = DType::bf16; }},
      {"dweight: value %28 (dup.weight) is bf16 where fp32 or fp64 is needed",
       [](Graph& g) { g.value(g.find("dup.weight")).dtype = DType::bf16; }},
      {"skip: value %9 (skip) is fp32 where fp64 is needed",
       [](Graph& g) { g.value(g.find("skip")).dtype = DType::fp32; }},
      {"x: value %0 (x) is int32 where a float type is needed",
       [](Graph& g) { g.value(0).dtype = DType::int32; }},
      {"(chunk): value %16 (activated) is fp32 and its view is bf16",
       [](Graph& g) { g.value(g.find("rows")).dtype = DType::bf16; }},
      // regions
      {"the operations of region logits do not stand together",
       [](Graph& g) { move_operation(g, index_of(g, gelu_gradient), index_of(g, matmul_weight_gradient)); }},
      {"there is no region 7", [](Graph& g) { operation(g, chunk).region = 7; }},
      {"there is no region -3", [](Graph& g) { operation(g, chunk).region = -3; }},
      {"region logits has 8 rows in chunks of 0", [](Graph& g) { g.regions[0].chunk_rows = 0; }},
      {"(chunk): of region -1 stands in region 0",
       [](Graph& g) { operation(g, chunk).attributes.region = -1; }},
      {"(chunk): [1,3,8] of [2,4,8] in chunks of 3 of 9 rows", [](Graph& g) { g.regions[0].rows = 9; }},
      {"(chunk): [1,3,8] of [2,4,8] in chunks of 4 of 8 rows", [](Graph& g) { g.regions[0].chunk_rows = 4; }},
      {"y: value %13 (normed) is [2,4,8] in a region of chunks of 3 rows",
       [](Graph& g) { g.operations[0].region = g.operations[1].region = 0; }},
      {"value %20 (loss) holds rows of one iteration and is read outside of its region",
       [](Graph& g) { g.outputs.push_back(g.find("loss")); }},
      {"value %24 (dhead) is whole only after the region it is read in",
       [](Graph& g) {
         const ValueId sum =
             g.add_value({.name = "sum", .dtype = DType::fp64, .shape = {1}, .placements = {}});
         g.operations.insert(g.operations.begin() + static_cast<std::ptrdiff_t>(index_of(g, gelu_gradient)),
                             {.kind = OperationKind::sum,
                              .attributes = {},
                              .inputs = {g.find("dhead")},
                              .outputs = {sum},
                              .region = 0});
       }},
      // names and tables
      {"two values are named x", [](Graph& g) { g.value(3).name = "x"; }},
      {"a value has no name", [](Graph& g) { g.value(3).name = ""; }},
      {"two tables are named block", [](Graph& g) { g.tables.push_back(g.tables[0]); }},
      {"two parameters are named head.weight", [](Graph& g) { g.tables[0].members[0].name = "head.weight"; }},
      {"head.weight starts at 71, within the one before it",
       [](Graph& g) { g.tables[0].members[2].offset = 71; }},
      {"(adamw): no table -1", [](Graph& g) { operation(g, adamw).attributes.table = -1; }},
      {"(adamw): no table 1", [](Graph& g) { operation(g, adamw).attributes.table = 1; }},
      {"a bucket of 160 elements for table block of 161",
       [](Graph& g) { g.tables[0].members[2].offset = 73; }},
  };
  for (const Case& c : cases) {
    Graph graph = make_example_graph();
    c.break_it(graph);
    EXPECT_THAT(fault_of(graph), ::testing::HasSubstr(c.fault));
  }
}

TEST(Verify, NormsFitTheTable) {
  GraphBuilder b("norms");
  b.graph.tables.push_back(
      {.name = "t", .members = {{.name = "a", .shape = {3}}, {.name = "b", .shape = {4}, .offset = 3}}});
  const ValueId gradient = b.input("gradient", {7}, Role::bucket_gradient);
  const ValueId norms = b.value("norms", {2}, Role::scalar, DType::fp64);
  b.add(OperationKind::squared_norms, {gradient}, {norms}, {.table = 0}, Part::update);
  EXPECT_EQ(fault_of(b.graph), "");
  b.graph.value(norms).shape = {3};
  EXPECT_THAT(fault_of(b.graph), ::testing::HasSubstr("value %1 (norms) has 3 norms where table t needs 2"));
}

TEST(Verify, TotalOfANormMayBeNarrow) {
  GraphBuilder b("norm");
  const ValueId x = b.input("x", {1, 2, 4}, Role::residual, DType::bf16),
                y = b.value("y", {1, 2, 4}, Role::activation, DType::bf16);
  const ValueId weight = b.input("w", {4}, Role::parameter, DType::bf16),
                rstd = b.value("rstd", {1, 2}, Role::statistic);
  const ValueId total = b.value("total", {1, 2, 4}, Role::residual, DType::bf16);
  b.add(OperationKind::rms_norm, {x, weight, x}, {y, rstd, total});
  EXPECT_EQ(fault_of(b.graph), "");
}

// Whatever ids, operands and attributes a graph holds, the verifier ends in an error, never in a crash.
TEST(Verify, RandomGraphsNeverCrash) {
  std::mt19937_64 random(3);
  int refused = 0;
  for (int i = 0; i < 2000; ++i) refused += fault_of(make_random_graph(random)).empty() ? 0 : 1;
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace athanor
