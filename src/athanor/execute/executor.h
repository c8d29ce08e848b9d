// Runs step programs on a device: owns the two arenas and the streams, resolves a program into flat arrays of
// tasks when it is loaded, enqueues them step by step and keeps a record of each.
//
// Called by train, by benchmarks and tests. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "athanor/device/device.h"
#include "athanor/execute/rank_context.h"
#include "athanor/kernels/kernel.h"
#include "athanor/program/record.h"

namespace athanor {

struct ResolvedProgram;

// What an observer sees of an operation that has just run.
struct Observation {
  Address address;
  const Operation* operation = nullptr;
  std::span<const TensorView> inputs, outputs;             // absent optional operands have null data
  std::span<const std::string> input_names, output_names;  // logical, "{layer}" filled in
  // Any value of the call's template, as one of an operation in `region` (-1: outside of loops).
  std::function<TensorView(ValueId, int32_t region)> view_of;
};

class Executor {
 public:
  // `kernels`, `device` and `communicator` must outlive the executor. `threads`: size of the compute stream's
  // team. Without a communicator the programs are those of one rank. With one, every rank must run the same
  // programs in the same order, and an error on one ends the step on all.
  Executor(Device& device, const KernelTable& kernels, int threads, Communicator* communicator = nullptr);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Nanoseconds that one execution of an operation takes, or one iteration of its region.
  using Prediction = std::function<int64_t(const Graph& graph, const Operation& operation)>;

  // Allocates the arenas (throws a user error with the bytes asked for when memory is short) and resolves all
  // programs of the set: a kernel that is missing is an error here, naming operation and type. `prediction`
  // is for a device that takes predicted times; without it every operation takes none there.
  void load(std::shared_ptr<const ProgramSet> set, const Prediction& prediction = {});

  // Runs one step of program `index`; nothing is allocated. Returns when it has ended; rethrows the first
  // error of a kernel or a collective. An error before the commit point (the clip operation) leaves weights
  // and optimizer state as they were. Once their update has begun it is made whole: what other ranks do can
  // only spoil the gathering of working weights behind it, and that is an error when all parts of the update
  // have been made.
  void run(size_t index, const StepInputs& inputs);

  // As run, but waits after each operation and calls `observe`: for dumps and for finding a NaN. When `until`
  // returns true the step ends there, as if the commit point were never reached.
  void run_observed(size_t index, const StepInputs& inputs,
                    const std::function<void(const Observation&)>& observe,
                    const std::function<bool(const Observation&)>& until = {});

  // Whether the last run got beyond its commit point, whatever it threw: the update has then been made whole.
  bool committed() const { return committed_; }

  // Records of the last run() in issue order; valid until the next run.
  std::span<const Record> records() const { return records_; }

  // The bytes of a persistent buffer ("master.block.3"), or of a transient one of a program.
  std::span<std::byte> persistent(const std::string& buffer_name);
  std::span<std::byte> transient(size_t program, const std::string& buffer_name);
  bool has_persistent(const std::string& buffer_name) const;
  double scalar(const std::string& name);  // "loss", "gradient_norm", ...: fp64 device scalars

  const ProgramSet& set() const { return *set_; }

 private:
  std::shared_ptr<std::byte> allocate(int64_t bytes);
  void synchronize();
  void issue(ResolvedProgram& program, const std::function<bool(size_t)>& after);

  Device& device_;
  const KernelTable& kernels_;
  int threads_;
  RankContext rank_;
  Stream* streams_[stream_kind_count] = {};  // communication: null without a communicator
  std::shared_ptr<const ProgramSet> set_;
  std::shared_ptr<std::byte> persistent_, transient_;
  int64_t transient_bytes_ = 0;
  std::vector<std::unique_ptr<ResolvedProgram>> programs_;
  std::vector<Record> records_;
  bool committed_ = false;
};

}  // namespace athanor
