#include "athanor/observe/time_by_operation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace athanor {
namespace {

constexpr int64_t millisecond = 1'000'000;

// Two templates with a product [4, 8] x [3, 8] and a gelu each, the first called twice.
StepProgram make_program() {
  StepProgram program;
  for (const char* name : {"block.forward", "head"}) {
    Template block;
    block.name = name;
    Graph& graph = block.graph;
    const auto value = [&](const char* label, Shape shape) {
      return graph.add_value({.name = label, .shape = shape, .placements = {}});
    };
    const ValueId x = value("x", {1, 4, 8}), w = value("w", {3, 8}), y = value("y", {1, 4, 3}),
                  z = value("z", {1, 4, 3});
    graph.add_operation(OperationKind::matmul, {x, w, no_value}, {y}, {}, Part::forward);
    graph.add_operation(OperationKind::gelu, {y}, {z}, {}, Part::forward);
    program.templates.push_back(std::move(block));
  }
  for (const int32_t id : {0, 0, 1}) {
    Call call;
    call.template_id = id;
    program.calls.push_back(call);
  }
  return program;
}

Record record_of(int32_t call, int32_t operation, int64_t begin_ms, int64_t end_ms,
                 StreamKind stream = StreamKind::compute) {
  return {.address = {.call = call, .operation = operation},
          .stream = stream,
          .kind = operation == 0 ? OperationKind::matmul : OperationKind::gelu,
          .step = 1,
          .begin_ns = begin_ms * millisecond,
          .end_ns = end_ms * millisecond};
}

TEST(TimeByOperation, AddsUpKindsAndTemplates) {
  const StepProgram program = make_program();
  TimeByOperation times;
  // 100 ms: the compute stream works 70, of which 10 are covered twice; 20 ms of copying do not count.
  const std::vector<Record> first = {record_of(0, 0, 1000, 1020), record_of(0, 1, 1020, 1030),
                                     record_of(1, 0, 1040, 1070), record_of(1, 1, 1060, 1080),
                                     record_of(2, 0, 1080, 1100, StreamKind::copy)};
  times.add(program, first, 1000 * millisecond, 1100 * millisecond);
  times.add(program, first, 1000 * millisecond, 1100 * millisecond);
  const TimeSummary summary = times.summary();
  EXPECT_EQ(summary.steps, 2);
  EXPECT_DOUBLE_EQ(summary.step_seconds, 0.1);
  EXPECT_DOUBLE_EQ(summary.compute_seconds, 0.07);
  EXPECT_NEAR(summary.outside_kernels_share(), 0.3, 1e-12);

  ASSERT_EQ(summary.by_kind.size(), 2U);
  EXPECT_EQ(summary.by_kind[0].name, "matmul");
  EXPECT_DOUBLE_EQ(summary.by_kind[0].seconds, 0.07);
  EXPECT_DOUBLE_EQ(summary.by_kind[0].count, 3);
  EXPECT_DOUBLE_EQ(summary.by_kind[0].flops, 3 * 2 * 4 * 3 * 8);
  EXPECT_EQ(summary.by_kind[1].name, "gelu");
  EXPECT_DOUBLE_EQ(summary.by_kind[1].seconds, 0.03);
  ASSERT_EQ(summary.by_template.size(), 3U);
  EXPECT_EQ(summary.by_template[0].template_name, "block.forward");
  EXPECT_DOUBLE_EQ(summary.by_template[0].seconds, 0.05);
  EXPECT_EQ(summary.by_template[2].template_name, "head");
  EXPECT_DOUBLE_EQ(summary.by_template[2].seconds, 0.02);

  const auto json = nlohmann::json::parse(seconds_by_kind_json(summary));
  EXPECT_DOUBLE_EQ(json.at("matmul").get<double>(), 0.07);
  EXPECT_DOUBLE_EQ(json.at("gelu").get<double>(), 0.03);
  const std::string table = to_table(summary);
  EXPECT_THAT(table, testing::HasSubstr(" 70.0%    70.0 ms         3"));
  EXPECT_THAT(table, testing::HasSubstr(" 30.0%    30.0 ms  outside of kernels"));
  EXPECT_THAT(table, testing::HasSubstr("matmul  block.forward\n"));
}

TEST(TimeByOperation, CostOfALoopIsCountedOnce) {
  const StepProgram program = make_program();
  std::vector<Record> records;
  for (int32_t iteration = 0; iteration < 5; ++iteration) {
    records.push_back(record_of(0, 0, iteration, iteration + 1));
    records.back().address.iteration = iteration;
  }
  TimeByOperation times;
  times.add(program, records, 0, 10 * millisecond);
  const TimeSummary summary = times.summary();
  ASSERT_EQ(summary.by_kind.size(), 1U);
  EXPECT_DOUBLE_EQ(summary.by_kind[0].count, 5);
  EXPECT_DOUBLE_EQ(summary.by_kind[0].flops, 2 * 4 * 3 * 8);
}

TEST(TimeByOperation, NothingAddedGivesZeros) {
  const TimeSummary summary = TimeByOperation().summary();
  EXPECT_EQ(summary.outside_kernels_share(), 0.0);
  EXPECT_EQ(seconds_by_kind_json(summary), "{}");
  EXPECT_FALSE(to_table(summary).empty());
}

TEST(TimeByOperationDeathTest, RecordsOfAnotherStepAreABug) {
  const StepProgram program = make_program();
  TimeByOperation times;
  const std::vector<Record> outside = {record_of(0, 0, 5, 15)}, unknown = {record_of(9, 0, 5, 6)};
  EXPECT_DEATH(times.add(program, outside, 0, 10 * millisecond), "record from");
  EXPECT_DEATH(times.add(program, unknown, 0, 10 * millisecond), "call 9");
}

}  // namespace
}  // namespace athanor
