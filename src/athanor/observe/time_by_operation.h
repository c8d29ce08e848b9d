// Where the time of a step goes: the records of steps added up by kind of operation and by template.
//
// Called by `train` (summary at the end, `time_by_operation` of the benchmarks) with the records of the
// executor or the simulator. Thread safety: one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "athanor/program/program.h"
#include "athanor/program/record.h"

namespace athanor {

struct OperationTime {
  std::string name;             // of the operation kind
  std::string template_name;    // empty where templates are added up
  double count = 0;             // executions a step; an iteration of a region counts as one
  double seconds = 0;           // a step
  double flops = 0, bytes = 0;  // a step, from the operations' cost
};

// All numbers are means over the steps that were added.
struct TimeSummary {
  int64_t steps = 0;
  double step_seconds = 0;                          // wall time
  double compute_seconds = 0;                       // in which the compute stream ran an operation
  std::vector<OperationTime> by_kind, by_template;  // longest first

  // 1 - kernel time on the compute stream / wall time of the step; 0 without steps.
  double outside_kernels_share() const;
};

class TimeByOperation {
 public:
  // Adds one step of `program`, which lasted from `begin_ns` to `end_ns`. Records that lie outside of the
  // step or do not fit the program are a bug.
  void add(const StepProgram& program, std::span<const Record> records, int64_t begin_ns, int64_t end_ns);
  TimeSummary summary() const;

 private:
  struct Sum {
    int64_t count = 0, nanoseconds = 0;
    Cost cost;
  };

  std::map<std::pair<std::string, OperationKind>, Sum> sums_;  // by template name
  int64_t steps_ = 0, step_ns_ = 0, compute_ns_ = 0;
};

// A table for people: share, time a step, count, TFLOP/s and GB/s of each kind, then of each template.
std::string to_table(const TimeSummary& summary);
// {"matmul":0.123,...}: seconds a step by kind, longest first.
std::string seconds_by_kind_json(const TimeSummary& summary);

}  // namespace athanor
