#include "athanor/execute/executor.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "athanor/base/error.h"
#include "athanor/execute/resolved_program.h"

namespace athanor {

namespace {

void run_execution(void* argument, ThreadTeam& team) {
  const auto& execution = *static_cast<const Execution*>(argument);
  if (execution.late_failure != nullptr && *execution.late_failure != nullptr) return;
  try {
    if (execution.collective != nullptr) {
      execution.collective->run();
    } else {
      execution.kernel->run(execution.arguments, {&team, *execution.step});
    }
  } catch (const std::exception& error) {
    // Peers, and this rank's own communication stream, may be waiting for what will not come.
    if (execution.communicator != nullptr && execution.collective == nullptr)
      execution.communicator->abort(error.what());
    if (execution.late_failure == nullptr) throw;
    *execution.late_failure = std::current_exception();
  }
}

// What failed behind the begin of the update, when all parts of the update have been made.
void throw_late_failure(ResolvedProgram& program) {
  if (program.late_failure != nullptr) std::rethrow_exception(std::exchange(program.late_failure, nullptr));
}

std::vector<std::string> names_of(const Execution& execution, const std::vector<ValueId>& ids,
                                  int32_t layer) {
  std::vector<std::string> names;
  for (const ValueId id : ids) {
    names.push_back(id == no_value ? "" : fill_layer(execution.graph->value(id).name, layer));
  }
  return names;
}

}  // namespace

Executor::Executor(Device& device, const KernelTable& kernels, int threads, Communicator* communicator)
    : device_(device), kernels_(kernels), threads_(threads) {
  rank_.communicator = communicator;
  const auto create = [&](StreamKind kind, int team) {
    streams_[static_cast<size_t>(kind)] = &device.create_stream(name_of(kind), team);
  };
  create(StreamKind::compute, threads);
  create(StreamKind::copy, 1);
  if (communicator != nullptr) create(StreamKind::communication, 1);
}

Executor::~Executor() {
  for (Stream* stream : streams_) {
    try {
      if (stream != nullptr) stream->synchronize();
    } catch (...) {  // nobody is left to hear of it
    }
  }
}

void Executor::load(std::shared_ptr<const ProgramSet> set, const Prediction& prediction) {
  programs_.clear();
  set_ = std::move(set);
  transient_bytes_ = 0;
  for (const StepProgram& program : set_->programs) {
    transient_bytes_ = std::max(transient_bytes_, program.transient_bytes);
  }
  rank_.mesh = &set_->mesh;
  rank_.gradient_wire = set_->gradient_wire;
  rank_.coordinates = coordinates_of(
      set_->mesh, rank_.communicator != nullptr ? static_cast<int32_t>(rank_.communicator->rank()) : 0);
  persistent_ = allocate(set_->persistent_bytes);
  transient_ = allocate(transient_bytes_);
  size_t most_executions = 0;
  for (const StepProgram& program : set_->programs) {
    programs_.push_back(std::make_unique<ResolvedProgram>());
    resolve(program, kernels_, {persistent_.get(), transient_.get()}, threads_, rank_, *programs_.back());
    for (Execution& execution : programs_.back()->executions) {
      if (prediction) execution.predicted_ns = prediction(*execution.graph, *execution.operation);
    }
    most_executions = std::max(most_executions, programs_.back()->executions.size());
  }
  records_.reserve(most_executions);
}

// Where peers can read it, if there are any: collectives then copy the least.
std::shared_ptr<std::byte> Executor::allocate(int64_t bytes) {
  return rank_.communicator != nullptr ? rank_.communicator->allocate(bytes) : device_.allocate(bytes);
}

// Enqueues all executions, without allocating; after(i) is called when execution i has been enqueued and ends
// the step if true.
void Executor::issue(ResolvedProgram& program, const std::function<bool(size_t)>& after) {
  const auto stream_of = [&](StreamKind kind) -> Stream& { return *streams_[static_cast<size_t>(kind)]; };
  Stream& compute = stream_of(StreamKind::compute);
  Stream* communication = streams_[static_cast<size_t>(StreamKind::communication)];
  std::vector<Event>& ended = program.call_ended;
  for (size_t c = 0; c < program.program->calls.size(); ++c) {
    const Call& call = program.program->calls[c];
    const auto begin = static_cast<size_t>(program.call_begin[c]),
               end = static_cast<size_t>(program.call_begin[c + 1]);
    const bool mixed = program.call_is_mixed[c];
    bool open = false;  // a collective of this call that the compute stream has not waited for
    std::array<bool, stream_kind_count> entered{};
    for (size_t i = begin; i < end; ++i) {
      Execution& execution = program.executions[i];
      Stream& stream = stream_of(execution.stream);
      if (!std::exchange(entered[static_cast<size_t>(execution.stream)], true)) {
        for (const int32_t awaited : call.waits) stream.wait(ended[static_cast<size_t>(awaited)]);
      }
      if (mixed && execution.stream == StreamKind::communication) {
        stream.wait(compute.record());
        open = true;
      }
      if (execution.joins && std::exchange(open, false)) stream.wait(communication->record());
      stream.enqueue({&run_execution, &execution, execution.predicted_ns, &execution.span});
      if (after && after(i)) return;
    }
    if (open) compute.wait(communication->record());
    if (program.call_is_awaited[c] && begin < end) {
      ended[c] = mixed ? compute.record() : stream_of(program.executions[end - 1].stream).record();
    }
  }
}

void Executor::synchronize() {
  for (Stream* stream : streams_) {
    if (stream != nullptr) stream->synchronize();
  }
}

void Executor::run(size_t index, const StepInputs& inputs) {
  ResolvedProgram& program = *programs_.at(index);
  program.step = &inputs;
  program.late_failure = nullptr;
  committed_ = false;
  issue(program, {});
  synchronize();
  committed_ = true;
  throw_late_failure(program);
  records_.clear();
  for (const Execution& execution : program.executions) {
    records_.push_back({execution.address, execution.stream, execution.operation->kind, inputs.step,
                        execution.span.begin_ns, execution.span.end_ns});
  }
}

void Executor::run_observed(size_t index, const StepInputs& inputs,
                            const std::function<void(const Observation&)>& observe,
                            const std::function<bool(const Observation&)>& until) {
  ResolvedProgram& program = *programs_.at(index);
  program.step = &inputs;
  program.late_failure = nullptr;
  const Places places(*program.program, {persistent_.get(), transient_.get()});
  committed_ = false;
  bool given_up = false;
  issue(program, [&](size_t i) {
    synchronize();
    const Execution& execution = program.executions[i];
    const int32_t layer = program.program->calls[static_cast<size_t>(execution.address.call)].layer;
    const auto input_names = names_of(execution, execution.operation->inputs, layer);
    const auto output_names = names_of(execution, execution.operation->outputs, layer);
    const Call& call = program.program->calls[static_cast<size_t>(execution.address.call)];
    const Observation observation{execution.address,
                                  execution.operation,
                                  execution.inputs,
                                  execution.outputs,
                                  input_names,
                                  output_names,
                                  [&](ValueId id, int32_t region) {
                                    return places.view(call, id, region, execution.address.iteration);
                                  }};
    if (observe) observe(observation);
    return given_up = until && until(observation);
  });
  synchronize();
  committed_ = !given_up;
  throw_late_failure(program);
}

namespace {

const Buffer* find_buffer(const StepProgram& program, const std::string& name, bool persistent) {
  for (const Buffer& buffer : program.buffers) {
    if (buffer.name == name && is_persistent(buffer.buffer_class) == persistent) return &buffer;
  }
  return nullptr;
}

}  // namespace

bool Executor::has_persistent(const std::string& name) const {
  return find_buffer(set_->programs.at(0), name, true) != nullptr;
}

std::span<std::byte> Executor::persistent(const std::string& name) {
  const Buffer* buffer = find_buffer(set_->programs.at(0), name, true);
  ATHANOR_ASSERT(buffer != nullptr, "no persistent buffer {}", name);
  return {persistent_.get() + buffer->offset, static_cast<size_t>(buffer->bytes)};
}

std::span<std::byte> Executor::transient(size_t program, const std::string& name) {
  const Buffer* buffer = find_buffer(set_->programs.at(program), name, false);
  ATHANOR_ASSERT(buffer != nullptr, "no buffer {} in program {}", name, program);
  return {transient_.get() + buffer->offset, static_cast<size_t>(buffer->bytes)};
}

double Executor::scalar(const std::string& name) {
  double value = 0;
  std::memcpy(&value, persistent("scalar." + name).data(), sizeof value);
  return value;
}

}  // namespace athanor
