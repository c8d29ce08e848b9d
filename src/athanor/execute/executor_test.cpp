#include "athanor/execute/executor.h"

#include <gtest/gtest.h>

#include <cstring>
#include <mutex>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/device/cpu_device.h"
#include "athanor/device/timed_device.h"
#include "athanor/program/test_programs.h"

namespace athanor {
namespace {

// What the kernels of these tests were called with; kernels are plain functions, so it cannot be elsewhere.
struct Seen {
  OperationKind kind{};
  bool accumulate = false;
  int32_t micro_batch = 0;
};
std::mutex seen_mutex;
std::vector<Seen> seen;
OperationKind failing = OperationKind::chunk;  // a view: no kernel

template <int kind>
void note(const KernelArguments& arguments, const KernelContext& context) {
  EXPECT_NE(context.step, nullptr);
  const std::lock_guard lock(seen_mutex);
  seen.push_back({static_cast<OperationKind>(kind), arguments.accumulate, arguments.micro_batch});
  if (static_cast<OperationKind>(kind) == failing) throw_user_error("a kernel failed", "try again");
  for (const TensorView& output : arguments.outputs) {
    if (output.present())
      std::memset(output.data, 0, static_cast<size_t>(output.shape.elements()) * size_of(output.dtype));
  }
}

template <int... kinds>
KernelTable noting_table(std::integer_sequence<int, kinds...>) {
  KernelTable table;
  for (int dtype = 0; dtype < dtype_count; ++dtype) {
    (table.set(static_cast<OperationKind>(kinds), static_cast<DType>(dtype), {.run = &note<kinds>}), ...);
  }
  return table;
}

class ExecutorTest : public testing::Test {
 protected:
  ExecutorTest() {
    seen.clear();
    failing = OperationKind::chunk;
    auto set = std::make_shared<ProgramSet>();
    set->programs.push_back(TestProgram::make());
    for (const Buffer& buffer : set->programs.front().buffers) {
      if (is_persistent(buffer.buffer_class)) {
        set->persistent_bytes = std::max(set->persistent_bytes, buffer.offset + test_aligned(buffer.bytes));
      }
    }
    set_ = set;
    inputs_.micro_batches.resize(2);
  }

  const StepProgram& program() const { return set_->programs.front(); }

  std::shared_ptr<const ProgramSet> set_;
  KernelTable kernels_ = noting_table(std::make_integer_sequence<int, operation_kind_count>());
  StepInputs inputs_;
};

TEST_F(ExecutorTest, RunsEveryOperationOfEveryCallAndRecordsIt) {
  CpuDevice device;
  Executor executor(device, kernels_, 2);
  executor.load(set_);
  for (int repeat = 0; repeat < 3; ++repeat) {
    seen.clear();
    executor.run(0, inputs_);
    EXPECT_EQ(seen.size(), executor.records().size());
    size_t instructions = 0;
    for (const Call& call : program().calls) {
      instructions += program().templates[static_cast<size_t>(call.template_id)].instructions.size();
    }
    EXPECT_GE(executor.records().size(), instructions);
    for (const Record& record : executor.records()) {
      EXPECT_GT(record.begin_ns, 0);
      EXPECT_LE(record.begin_ns, record.end_ns);
    }
  }
}

// Nothing on the compute stream counts labels before the copy stream has loaded them.
TEST_F(ExecutorTest, StreamsWaitForEachOther) {
  CpuDevice device;
  Executor executor(device, kernels_, 1);
  executor.load(set_);
  for (int repeat = 0; repeat < 50; ++repeat) {
    executor.run(0, inputs_);
    int64_t loaded[2] = {};
    for (const Record& record : executor.records()) {
      const int32_t micro_batch = program().calls[static_cast<size_t>(record.address.call)].micro_batch;
      if (record.kind == OperationKind::load_batch) {
        EXPECT_EQ(record.stream, StreamKind::copy);
        loaded[micro_batch] = record.end_ns;
      }
      if (record.kind == OperationKind::count_valid) {
        EXPECT_GE(record.begin_ns, loaded[micro_batch]);
      }
    }
  }
}

TEST_F(ExecutorTest, TheFirstContributionOfAStepOverwritesTheOthersAdd) {
  CpuDevice device;
  Executor executor(device, kernels_, 1);
  executor.load(set_);
  executor.run(0, inputs_);
  std::vector<bool> counts;
  for (const Seen& one : seen) {
    if (one.kind == OperationKind::count_valid) counts.push_back(one.accumulate);
  }
  EXPECT_EQ(counts, (std::vector<bool>{false, true}));
}

TEST_F(ExecutorTest, AnErrorEndsTheStepOnceAndTheNextStepRuns) {
  CpuDevice device;
  Executor executor(device, kernels_, 2);
  executor.load(set_);
  failing = OperationKind::clip;
  EXPECT_THROW(executor.run(0, inputs_), Error);
  for (const Seen& one : seen) EXPECT_NE(one.kind, OperationKind::adamw);  // behind the commit point
  failing = OperationKind::chunk;
  seen.clear();
  executor.run(0, inputs_);
  EXPECT_EQ(seen.back().kind, OperationKind::adamw);
}

TEST_F(ExecutorTest, AMissingKernelIsAnErrorWhenLoading) {
  kernels_.set(OperationKind::clip, DType::fp64, {});
  CpuDevice device;
  Executor executor(device, kernels_, 1);
  try {
    executor.load(set_);
    FAIL() << "loaded without a kernel";
  } catch (const Error& error) {
    EXPECT_NE(error.message().find("clip"), std::string::npos) << error.message();
  }
}

TEST_F(ExecutorTest, AnObservedStepEndsWhereItIsTold) {
  CpuDevice device;
  Executor executor(device, kernels_, 1);
  executor.load(set_);
  size_t observed = 0;
  executor.run_observed(0, inputs_, [&](const Observation&) { ++observed; });
  EXPECT_EQ(observed, seen.size());
  seen.clear();
  executor.run_observed(0, inputs_, {},
                        [](const Observation& at) { return at.operation->kind == OperationKind::clip; });
  EXPECT_EQ(seen.back().kind, OperationKind::clip);
}

// The same program on the device that takes predicted times and computes nothing: a time of its own for each
// kind, in the order of each stream, and after what it waits for.
TEST_F(ExecutorTest, TheTimedDeviceTakesPredictedTimesAndRunsNoKernel) {
  const auto time_of = [](OperationKind kind) {
    return kind == OperationKind::load_batch ? int64_t{3'000'000} : 1000 + 100 * static_cast<int64_t>(kind);
  };
  TimedDevice device;
  Executor executor(device, kernels_, 1);
  executor.load(set_, [&](const Graph&, const Operation& operation) { return time_of(operation.kind); });
  executor.run(0, inputs_);
  EXPECT_TRUE(seen.empty());
  ASSERT_FALSE(executor.records().empty());
  int64_t stream_end[stream_kind_count] = {}, loaded[2] = {};
  for (const Record& record : executor.records()) {
    EXPECT_EQ(record.end_ns - record.begin_ns, time_of(record.kind)) << name_of(record.kind);
    EXPECT_GE(record.begin_ns, std::exchange(stream_end[static_cast<size_t>(record.stream)], record.end_ns));
    const int32_t micro_batch = program().calls[static_cast<size_t>(record.address.call)].micro_batch;
    if (record.kind == OperationKind::load_batch) loaded[micro_batch] = record.end_ns;
    if (record.kind == OperationKind::count_valid) {
      EXPECT_GE(record.begin_ns, loaded[micro_batch]);
    }
  }
  EXPECT_GT(loaded[1], 0);
}

}  // namespace
}  // namespace athanor
