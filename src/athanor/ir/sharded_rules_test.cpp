#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/ir/part.h"
#include "athanor/ir/test_graphs.h"

namespace athanor {
namespace {

using enum OperationKind;

OperandType of(Shape shape, DType dtype = DType::fp32) {
  return {.dtype = dtype, .shape = shape, .present = true};
}

Attributes across(int32_t ranks, const char* from, const char* to) {
  Attributes attributes;
  attributes.axis = Axis::tensor;
  attributes.ranks = ranks;
  attributes.from = *parse_placement(from);
  attributes.to = *parse_placement(to);
  return attributes;
}

std::optional<std::string> problem(OperationKind kind, const Attributes& attributes,
                                   const std::vector<OperandType>& inputs,
                                   const std::vector<OperandType>& outputs) {
  return row_of(kind).check(attributes, inputs, outputs);
}

// 7 columns over 3 ranks are stored as 3 on each.
TEST(Collectives, ShapesFitTheParts) {
  const auto gather = across(3, "shard(1)", "replicate"), scatter = across(3, "partial(sum)", "shard(1)");
  EXPECT_EQ(problem(all_gather, gather, {of({2, 3})}, {of({2, 7})}), std::nullopt);
  EXPECT_NE(problem(all_gather, gather, {of({2, 3})}, {of({2, 10})}), std::nullopt);
  EXPECT_EQ(problem(reduce_scatter, scatter, {of({2, 7})}, {of({2, 3})}), std::nullopt);
  EXPECT_NE(problem(reduce_scatter, scatter, {of({2, 7})}, {of({2, 2})}), std::nullopt);
  EXPECT_EQ(problem(local_part, across(3, "replicate", "shard(0)"), {of({7, 2})}, {of({3, 2})}),
            std::nullopt);
  EXPECT_NE(problem(local_part, across(3, "replicate", "shard(2)"), {of({7, 2})}, {of({3, 2})}),
            std::nullopt);
  const auto exchange = across(3, "shard(0)", "shard(1)");
  EXPECT_EQ(problem(all_to_all, exchange, {of({3, 7})}, {of({8, 3})}), std::nullopt);
  EXPECT_NE(problem(all_to_all, exchange, {of({3, 7})}, {of({8, 2})}), std::nullopt);
  EXPECT_NE(problem(all_to_all, across(3, "shard(0)", "shard(0)"), {of({3, 7})}, {of({3, 7})}), std::nullopt);
  EXPECT_NE(problem(all_gather, across(3, "shard(1 repeat 2)", "replicate"), {of({2, 3})}, {of({2, 7})}),
            std::nullopt);
  const auto members = [&](int64_t offset, int64_t count) {
    Attributes attributes = across(2, "partial(sum)", "replicate");
    attributes.offset = offset;
    attributes.extent = count;
    return problem(reduce_members, attributes, {}, {of({10})});
  };
  EXPECT_EQ(members(0, 10), std::nullopt);
  EXPECT_EQ(members(10, 0), std::nullopt);
  EXPECT_NE(members(9, 2), std::nullopt);
  EXPECT_NE(members(-1, 2), std::nullopt);
  EXPECT_NE(members(1, int64_t{1} << 62), std::nullopt);
}

TEST(Collectives, CostsCountWhatARankMustSend) {
  const auto sent = [](OperationKind kind, const Attributes& attributes, Shape x, Shape y) {
    const std::vector<OperandType> inputs{of(x)}, outputs{of(y)};
    return row_of(kind).cost(attributes, inputs, outputs).sent;
  };
  EXPECT_EQ(sent(all_reduce, across(4, "partial(sum)", "replicate"), {100}, {100}), 2 * 400 * 3 / 4);
  EXPECT_EQ(sent(all_reduce, across(4, "shard(0 repeat 2 partial)", "replicate"), {100}, {100}), 400);
  EXPECT_EQ(sent(all_gather, across(4, "shard(0)", "replicate"), {25}, {100}), 300);
  EXPECT_EQ(sent(reduce_scatter, across(4, "partial(sum)", "shard(0)"), {100}, {25}), 300);
  EXPECT_EQ(sent(all_to_all, across(4, "shard(0)", "shard(1)"), {25, 4}, {100, 1}), 300);
}

// A collective must turn the placement that it is given into the one that it makes.
TEST(Verify, CollectivesFitThePlacements) {
  const auto graph = [](const char* before, const char* from, const char* after) {
    GraphBuilder b("collective");
    const ValueId x = b.input("x", {2, 3}, Role::residual), y = b.value("y", {2, 6}, Role::residual);
    b.graph.value(x).placements = placements_of(Axis::tensor, *parse_placement(before));
    b.graph.value(y).placements = placements_of(Axis::tensor, *parse_placement(after));
    b.add(all_gather, {x}, {y}, across(2, from, "replicate"));
    b.graph.outputs = {y};
    return std::move(b.graph);
  };
  EXPECT_NO_THROW(verify(graph("shard(1)", "shard(1)", "replicate")));
  EXPECT_THROW(verify(graph("replicate", "shard(1)", "replicate")), Error);
  EXPECT_THROW(verify(graph("shard(1)", "shard(1)", "shard(0)")), Error);
  EXPECT_THROW(verify(graph("shard(1)", "shard(0)", "replicate")), Error);
  Graph other_type = graph("shard(1)", "shard(1)", "replicate");
  other_type.values[1].dtype = DType::bf16;
  EXPECT_THROW(verify(other_type), Error);
}

TEST(PartOfABucket, KeepsEveryMemberInItsPlace) {
  BucketTable table{.name = "b", .members = {}};
  for (const int64_t length : {4, 3, 5}) {
    table.members.push_back({.name = "m", .shape = {length}, .offset = table.length()});
  }
  const BucketTable part = table_of_part(table, 3, 5);  // elements 3 .. 7
  ASSERT_EQ(part.members.size(), 3U);
  const std::vector<std::pair<int64_t, int64_t>> expected{{0, 1}, {1, 3}, {4, 1}};
  for (size_t m = 0; m < 3; ++m) {
    EXPECT_EQ(part.members[m].offset, expected[m].first);
    EXPECT_EQ(part.members[m].length(), expected[m].second);
  }
  for (const BucketMember& member : table_of_part(table, 12, 5).members) EXPECT_EQ(member.length(), 0);
}

TEST(FirstOfPart, IsWhereTheRanksRowsBegin) {
  GraphBuilder b("part");
  const ValueId table = b.input("table", {3, 2}, Role::parameter);
  const ValueId ids = b.input("ids", {1, 1}, Role::batch, DType::int32);
  const ValueId y = b.value("y", {1, 1, 2});
  b.graph.value(table).placements = placements_of(Axis::tensor, *parse_placement("shard(0)"));
  b.add(embedding, {table, ids}, {y}, {.extent = 7});
  b.graph.outputs = {y};
  verify(b.graph);
  const Mesh mesh = mesh_of(Axis::tensor, 3);
  for (int32_t rank = 0; rank < 3; ++rank) {
    Coordinates at{};
    at[static_cast<size_t>(Axis::tensor)] = rank;
    EXPECT_EQ(first_of_part(b.graph, b.graph.operations[0], mesh, at), 3 * rank);
  }
}

}  // namespace
}  // namespace athanor
