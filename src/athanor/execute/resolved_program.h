// A program resolved for execution: kernels, addresses, prepared primitives and waits in flat arrays.
// Internal to `execute`.
#pragma once

#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "athanor/device/device.h"
#include "athanor/execute/collective_task.h"
#include "athanor/ir/layer_name.h"
#include "athanor/kernels/kernel.h"
#include "athanor/program/record.h"

namespace athanor {

// One execution of one operation (of one iteration of a region).
struct Execution {
  Address address;
  StreamKind stream{};
  const Operation* operation = nullptr;
  const Graph* graph = nullptr;
  const Kernel* kernel = nullptr;  // null for a collective
  std::unique_ptr<CollectiveTask> collective;
  Communicator* communicator = nullptr;        // to tell the peers when a kernel fails; null on one rank
  bool joins = false;                          // waits for all collectives of the call before it
  std::exception_ptr* late_failure = nullptr;  // of a collective behind the begin of the update; see Executor
  KernelArguments arguments;
  std::vector<TensorView> inputs, outputs;
  std::vector<OperandType> input_types, output_types;
  std::shared_ptr<const void> prepared;
  int64_t predicted_ns = 0;                 // for a device that takes its time instead of running it
  const StepInputs* const* step = nullptr;  // set by run()
  TimeSpan span;
};

struct Arenas {
  std::byte* persistent = nullptr;
  std::byte* transient = nullptr;
};

// Where the values of a program are in its arenas.
class Places {
 public:
  Places(const StepProgram& program, const Arenas& arenas);
  std::byte* address(const Call& call, const Slot& slot, int64_t iteration) const;
  // A value of the call's template, in an iteration of a region or (region -1) as a whole. Absent when it
  // needs no storage.
  TensorView view(const Call& call, ValueId id, int32_t region, int64_t iteration) const;

 private:
  const StepProgram& program_;
  Arenas arenas_;
  std::vector<std::vector<bool>> chunked_;  // by template and value: holds the rows of one chunk
};

// Thread safety: one thread; executions run on streams while it stays unchanged.
struct ResolvedProgram {
  const StepProgram* program = nullptr;
  std::deque<Execution> executions;   // in issue order; addresses are stable
  std::deque<BucketTable> tables;     // of bucket operations, as this rank has them
  std::vector<int64_t> call_begin;    // by call: its first execution; one more at the end
  std::vector<bool> call_is_awaited;  // by call: another stream waits for it
  std::vector<bool> call_is_mixed;    // by call: see Instruction
  std::vector<Event> call_ended;      // by call that is awaited, in the step under way
  const StepInputs* step = nullptr;
  std::exception_ptr late_failure;  // the first one of the step
};

// Throws when a kernel is missing, naming the operation and its type. `rank`: its communicator is null where
// there are no others.
void resolve(const StepProgram& program, const KernelTable& kernels, const Arenas& arenas, int threads,
             const RankContext& rank, ResolvedProgram& result);

}  // namespace athanor
