// A model on a device, ready to step: compiles the programs, holds weights and optimizer state, runs steps.
//
// Called by the loops (train, evaluate, generate), benchmarks and tests. Thread safety: one thread.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "athanor/compile/compile.h"
#include "athanor/data/batch.h"
#include "athanor/execute/executor.h"
#include "athanor/ir/part.h"
#include "athanor/model/config.h"

namespace athanor {

enum class KernelSet : uint8_t { cpu, reference };

// Sequences to continue: how many at a time and how long they may get, and the lengths in which prompts are
// taken (each a program).
struct GenerationShape {
  int64_t rows = 0, capacity = 0;
  std::vector<int64_t> prefill_lengths = {};

  // Prompts in parts of 16, 64 and 256 tokens, where the capacity allows.
  static GenerationShape of(int64_t rows, int64_t capacity);
};

struct EngineOptions {
  ModelConfig model;
  CompileOptions compile;
  KernelSet kernels = KernelSet::cpu;
  int threads = 0;  // 0: all cores
  uint64_t seed = 0;
  int64_t micro_batch = 1, sequence_length = 1;
  std::vector<int32_t> micro_batch_counts{1};  // train programs to have: one per number of micro-batches
  int64_t validation_micro_batch = 0;          // 0: no validate program
  GenerationShape generation;                  // rows 0: no programs that continue sequences
  // This rank's among those of compile.layout's mesh; null: one rank. Sizes of batches, generation rows too,
  // are those of a rank; sequence_length is that of the whole sequence, a multiple of sequence_granule.
  Communicator* communicator = nullptr;
};

// Values above which a step is not to be committed.
struct SkipLimits {
  double loss = std::numeric_limits<double>::infinity();
  double gradient_norm = std::numeric_limits<double>::infinity();
};

// What one step did.
struct StepResult {
  double loss = 0;  // mean over valid tokens; NaN when there is none
  double loss_sum = 0, valid_tokens = 0;
  double gradient_norm = 0;  // before clipping
  double clip_factor = 1;
  bool skipped = false;  // nothing was written: no valid token, or loss or norm not finite or beyond a limit
  double seconds = 0;
};

// The first tensor with a value that is not finite, found by replaying a step.
struct NonFinite {
  std::string tensor, operation, part;
  int32_t micro_batch = -1;
  int64_t index = 0;  // in what this rank has of it
  double value = 0;
  int64_t order = 0;  // of the operation in the step
};

// A tensor of a model, as far as this rank has it.
struct NamedTensor {
  std::string name;
  DType dtype = DType::fp32;
  Shape shape;                  // of the whole tensor
  std::span<std::byte> bytes;   // the rank's storage of it
  std::vector<StoredRun> runs;  // which elements of the whole lie where in `bytes`; the rest is padding
  bool whole() const { return runs.size() == 1 && runs.front().length == shape.elements(); }
};

class Engine {
 public:
  // Compiles; does not allocate. User errors: an option that does not fit the model.
  explicit Engine(EngineOptions options);
  ~Engine();

  const ProgramSet& programs() const { return *set_; }
  const StepProgram& train_program(size_t micro_batches) const;  // of a step of so many
  int64_t planned_bytes() const;
  const EngineOptions& options() const { return options_; }

  // Allocates and loads; on all ranks together. Throws a user error with the numbers when the plans of the
  // ranks on this host do not fit in the memory that is available now.
  void allocate();

  // Sets all weights from (seed, parameter name, element index), zeroes the optimizer state.
  void initialise();

  // One optimizer step over the micro-batches. `step` counts steps finished before, `optimizer_step` updates
  // made before (skipped steps are none).
  StepResult train_step(std::span<const Batch> micro_batches, int64_t step, int64_t optimizer_step,
                        double learning_rate, const SkipLimits& limits = {});

  // Whether the last train_step or observed_step got beyond its commit point. Where it then threw, because
  // other ranks are lost, weights and optimizer state are those after the step; else those before it.
  bool committed() const { return executor_->committed(); }

  // What the gradient is multiplied by from the loss to the norm and the update, in the steps that follow; 1
  // to begin with. Results are true values: the scale is taken off again.
  void set_loss_scale(double scale) { loss_scale_ = scale; }

  // Replays the step that train_step skipped, with checks after each operation. Nothing persistent changes.
  std::optional<NonFinite> locate_non_finite(std::span<const Batch> micro_batches, int64_t step,
                                             int64_t optimizer_step, double learning_rate);

  // As train_step, and shows every operation's operands (for dumps and tests).
  StepResult observed_step(std::span<const Batch> micro_batches, int64_t step, int64_t optimizer_step,
                           double learning_rate, const std::function<void(const Observation&)>& observe,
                           const SkipLimits& limits = {});

  // Sum of token losses and number of valid tokens of one batch of validation_micro_batch samples.
  struct Evaluation {
    double loss_sum = 0, valid_tokens = 0;
  };
  Evaluation evaluate(const Batch& batch);

  // Puts tokens of a sequence into its row of the cache behind the `position` tokens it holds (0: a new
  // sequence), in as many parts as it takes. Returns the logits of what follows; valid until the next call.
  // What a row gives does not depend on the others. At least one token, and none beyond the capacity.
  std::span<const double> prefill(int64_t row, int64_t position, std::span<const int32_t> tokens);
  // One more token for each row whose position (tokens it holds) is not negative.
  void decode(std::span<const int32_t> tokens, std::span<const int32_t> positions);
  // Of what follows in a row after decode(); valid until the next call.
  std::span<const double> logits(int64_t row);

  // The weights by logical name: the master weights, or, in an engine that does not train, its only copy;
  // with the optimizer's state ("first_moment.NAME", ...) and averages.
  std::vector<NamedTensor> weights();
  std::vector<NamedTensor> state();
  // Makes the working copies from the master weights (after loading).
  void refresh_working();
  // Runs `work` (evaluation, samples) with the averaged weights in the place of the weights, which are back
  // when it has ended, with an error too.
  void with_average(const std::function<void()>& work);

  // The sum of the gradients of the last step by logical parameter name, times the loss scale (tests, dumps).
  std::vector<NamedTensor> gradients();

  std::span<const Record> records() const { return executor_->records(); }
  Executor& executor() { return *executor_; }
  const Backend& backend() const { return backend_; }
  int threads() const { return threads_; }

 private:
  size_t program_index(ProgramKind kind, int32_t micro_batches, int64_t sequence_length) const;
  size_t train_index(size_t micro_batches) const;
  bool trains() const { return !options_.micro_batch_counts.empty(); }
  void require_memory() const;
  std::string weight_prefix() const;
  std::string weight_buffer(const BucketTable& table) const;
  void swap_average();
  std::span<const double> widen_logits(size_t index, int64_t row);
  StepInputs inputs_for(std::span<const Batch> batches, int64_t step, int64_t optimizer_step,
                        double learning_rate);
  StepResult result() const;
  DType type_of(size_t table, const std::string& buffer);
  int64_t kept_elements(size_t table) const;  // of master weights and state
  // Where a member stands in its bucket's master weights and state, as far as this rank keeps them.
  struct MemberPlace {
    int64_t first = 0, count = 0;  // elements
    std::vector<StoredRun> runs;   // from `first` on
  };
  MemberPlace place_of(size_t table, size_t member) const;
  std::vector<NamedTensor> members(const std::string& buffer, const std::string& prefix);

  EngineOptions options_;
  int threads_ = 1;
  Coordinates coordinates_{};
  KernelTable kernels_;
  Backend backend_;
  std::shared_ptr<const ProgramSet> set_;
  std::unique_ptr<Device> device_;
  std::unique_ptr<Executor> executor_;
  double loss_scale_ = 1;
  std::vector<double> logits_;
};

// The backend description of a kernel table, for the compiler.
Backend describe_backend(const KernelTable& kernels, int threads, std::string name);

}  // namespace athanor
