#include "athanor/execute/executor.h"

#include <algorithm>
#include <cstring>

#include "athanor/base/error.h"
#include "athanor/execute/resolved_program.h"

namespace athanor {

namespace {

void run_execution(void* argument, ThreadTeam& team) {
  const auto& execution = *static_cast<const Execution*>(argument);
  execution.kernel->run(execution.arguments, {&team, *execution.step});
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

Executor::Executor(Device& device, const KernelTable& kernels, int threads)
    : device_(device), kernels_(kernels), threads_(threads) {
  streams_[static_cast<size_t>(StreamKind::compute)] = &device.create_stream("compute", threads);
  streams_[static_cast<size_t>(StreamKind::copy)] = &device.create_stream("copy", 1);
}

Executor::~Executor() {
  for (Stream* stream : streams_) {
    try {
      stream->synchronize();
    } catch (...) {  // nobody is left to hear of it
    }
  }
}

void Executor::load(std::shared_ptr<const ProgramSet> set) {
  programs_.clear();
  set_ = std::move(set);
  transient_bytes_ = 0;
  for (const StepProgram& program : set_->programs) {
    transient_bytes_ = std::max(transient_bytes_, program.transient_bytes);
  }
  persistent_ = device_.allocate(set_->persistent_bytes);
  transient_ = device_.allocate(transient_bytes_);
  for (const StepProgram& program : set_->programs) {
    programs_.push_back(std::make_unique<ResolvedProgram>());
    resolve(program, kernels_, {persistent_.get(), transient_.get()}, threads_, *programs_.back());
  }
}

int64_t Executor::arena_bytes() const {
  return set_->persistent_bytes + transient_bytes_;
}

// Enqueues all executions; after(i) is called when execution i has been enqueued and ends the step if true.
void Executor::issue(ResolvedProgram& program, const std::function<bool(size_t)>& after) {
  std::vector<Event> ended(program.program->calls.size());
  for (size_t c = 0; c < program.program->calls.size(); ++c) {
    const auto begin = static_cast<size_t>(program.call_begin[c]),
               end = static_cast<size_t>(program.call_begin[c + 1]);
    for (size_t i = begin; i < end; ++i) {
      Execution& execution = program.executions[i];
      Stream& stream = *streams_[static_cast<size_t>(execution.stream)];
      if (i == begin) {
        for (const int32_t awaited : program.program->calls[c].waits) {
          stream.wait(ended[static_cast<size_t>(awaited)]);
        }
      }
      stream.enqueue({&run_execution, &execution, 0, &execution.span});
      if (after && after(i)) return;
    }
    if (program.call_is_awaited[c] && begin < end) {
      ended[c] = streams_[static_cast<size_t>(program.executions[end - 1].stream)]->record();
    }
  }
}

void Executor::run(size_t index, const StepInputs& inputs) {
  ResolvedProgram& program = *programs_.at(index);
  program.step = &inputs;
  issue(program, {});
  for (Stream* stream : streams_) stream->synchronize();
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
  const Places places(*program.program, {persistent_.get(), transient_.get()});
  issue(program, [&](size_t i) {
    for (Stream* stream : streams_) stream->synchronize();
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
    return until && until(observation);
  });
  for (Stream* stream : streams_) stream->synchronize();
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
