#include "athanor/train/engine.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>

#include "athanor/base/error.h"
#include "athanor/base/philox.h"
#include "athanor/checkpoint/tensor_conversion.h"
#include "athanor/comm/rank_messages.h"
#include "athanor/device/cpu_device.h"
#include "athanor/execute/collective_task.h"
#include "athanor/execute/resolved_program.h"
#include "athanor/machine/host.h"
#include "athanor/model/model.h"
#include "athanor/train/tensor_parts.h"

namespace athanor {

namespace {

double value_at(const TensorView& view, int64_t element) {
  const size_t size = size_of(view.dtype);
  return float_at(view.dtype, {view.data + static_cast<size_t>(element) * size, size}, 0);
}

// Index of the first element that is not finite, in row-major order, or -1.
int64_t first_non_finite(const TensorView& view) {
  if (!view.present() || !is_float(view.dtype)) return -1;
  const bool by_token = view.shape.rank() >= 2 && !view.compact();
  const int64_t rows = by_token ? view.shape.tokens() : 1;
  const int64_t width = by_token ? view.shape.elements_per_token() : view.shape.elements();
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < width; ++i) {
      const int64_t at = row * (by_token ? view.token_stride : 0) + i;
      if (!std::isfinite(value_at(view, at))) return row * width + i;
    }
  }
  return -1;
}

const char* describe(Part part) {
  switch (part) {
    case Part::forward:
      return "forward";
    case Part::input_gradient:
      return "input gradient";
    case Part::weight_gradient:
      return "weight gradient";
    case Part::update:
      return "update";
  }
  return "";
}

}  // namespace

Backend describe_backend(const KernelTable& kernels, int threads, std::string name) {
  Backend backend;
  backend.name = std::move(name);
  backend.supports = [&kernels](OperationKind kind, DType dtype) {
    return kernels.find(kind, dtype) != nullptr;
  };
  backend.workspace_bytes = [&kernels, threads](const Operation& operation,
                                                std::span<const OperandType> inputs,
                                                std::span<const OperandType> outputs) -> int64_t {
    if (row_of(operation.kind).is_collective) return collective_workspace_bytes(operation, inputs, outputs);
    const Kernel* kernel = kernels.find(operation.kind, key_dtype(inputs, outputs));
    if (kernel == nullptr || kernel->workspace_bytes == nullptr) return 0;
    return kernel->workspace_bytes(operation.attributes, inputs, outputs, threads);
  };
  return backend;
}

Engine::Engine(EngineOptions options) : options_(std::move(options)) {
  threads_ = options_.threads > 0 ? options_.threads : available_cores();
  refuse_too_many(threads_, "threads", "as many as cores are the fastest");
  if (options_.kernels == KernelSet::cpu) {
    add_cpu_kernels(kernels_);
  } else {
    add_reference_kernels(kernels_);
  }
  backend_ = describe_backend(kernels_, threads_, options_.kernels == KernelSet::cpu ? "cpu" : "reference");
  std::vector<ProgramRequest> requests;
  for (const int32_t count : options_.micro_batch_counts) {
    requests.push_back({ProgramKind::train, count, options_.micro_batch, options_.sequence_length});
  }
  if (options_.validation_micro_batch > 0) {
    requests.push_back({ProgramKind::validate, 1, options_.validation_micro_batch, options_.sequence_length});
  }
  const GenerationShape& generation = options_.generation;
  if (generation.rows > 0) {
    ATHANOR_ASSERT(!generation.prefill_lengths.empty());
    const CacheShape cache{
        generation.rows, generation.capacity,
        *std::max_element(generation.prefill_lengths.begin(), generation.prefill_lengths.end())};
    for (const int64_t length : generation.prefill_lengths)
      requests.push_back({ProgramKind::prefill, 1, 1, length, cache});
    requests.push_back({ProgramKind::decode, 1, generation.rows, 1, cache});
  }
  set_ = std::make_shared<const ProgramSet>(compile(options_.model, requests, options_.compile, backend_));
  coordinates_ = coordinates_of(
      set_->mesh, options_.communicator != nullptr ? static_cast<int32_t>(options_.communicator->rank()) : 0);
  ATHANOR_ASSERT(options_.sequence_length % set_->mesh.size(Axis::context) == 0, "a sequence of {}",
                 options_.sequence_length);
}

Engine::~Engine() = default;

const StepProgram& Engine::train_program(size_t micro_batches) const {
  return set_->programs[train_index(micro_batches)];
}

int64_t Engine::planned_bytes() const {
  return athanor::planned_bytes(*set_);
}

void Engine::require_memory() const {
  const auto gibibytes = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); };
  const int sharing = options_.communicator != nullptr ? options_.communicator->ranks_on_host() : 1;
  const int64_t needed = planned_bytes(), available = available_memory_bytes();
  if (needed > available / sharing) {
    throw_user_error(
        fmt::format("{} needs {}{:.2f} GiB of memory and {:.2f} GiB are available",
                    trains() ? "the run" : "the model",
                    sharing > 1 ? fmt::format("for {} ranks on this host each ", sharing) : "",
                    gibibytes(needed), gibibytes(available)),
        trains()
            ? "lower train.micro_batch or data.sequence_length, set train.recompute to selective or full, "
              "or take a smaller model; `athanor show memory` prints what takes how much"
        : options_.generation.rows > 0
            ? "lower --context or --batch, take --precision bf16, or a smaller model"
            : "lower --batch or --sequence, take --precision bf16, or a smaller model");
  }
  // Nobody takes any before all have looked.
  RankMessages(options_.communicator).wait_for_all();
}

void Engine::allocate() {
  require_memory();
  device_ = std::make_unique<CpuDevice>(threads_);
  executor_ = std::make_unique<Executor>(*device_, kernels_, threads_, options_.communicator);
  executor_->load(set_);
}

void Engine::initialise() {
  for (size_t t = 0; t < set_->tables.size(); ++t) {
    const BucketTable& table = set_->tables[t];
    const auto bytes = executor_->persistent(weight_buffer(table));
    const DType dtype = type_of(t, weight_buffer(table));
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    for (size_t m = 0; m < table.members.size(); ++m) {
      const BucketMember& member = table.members[m];
      const RandomKey key(options_.seed, RandomPurpose::initial_weights, member.name);
      const MemberPlace place = place_of(t, m);
      for (const StoredRun& run : place.runs) {
        const auto count = static_cast<size_t>(run.length);
        const auto first = static_cast<uint64_t>(run.global_first);
        const auto fill = [&](auto* out) {
          if (member.initial_deviation > 0) fill_normal(key, first, member.initial_deviation, out, count);
          using Element = std::remove_pointer_t<decltype(out)>;
          if (member.initial_mean != 0) {
            for (size_t i = 0; i < count; ++i) out[i] += static_cast<Element>(member.initial_mean);
          }
        };
        const int64_t at = place.first + run.local_first;
        if (dtype == DType::fp64) {
          fill(reinterpret_cast<double*>(bytes.data()) + at);
        } else if (dtype == DType::fp32) {
          fill(reinterpret_cast<float*>(bytes.data()) + at);
        } else {
          std::vector<float> wide(count);
          fill(wide.data());
          const size_t element = size_of(dtype);
          convert_floats(DType::fp32, std::as_bytes(std::span(wide)), dtype,
                         bytes.subspan(static_cast<size_t>(at) * element, count * element));
        }
      }
    }
    for (const char* state : {"first_moment.", "second_moment.", "momentum."}) {
      if (!executor_->has_persistent(state + table.name)) continue;
      const auto of_state = executor_->persistent(state + table.name);
      std::fill(of_state.begin(), of_state.end(), std::byte{0});
    }
    if (executor_->has_persistent("average." + table.name)) {
      const auto master = executor_->persistent("master." + table.name);
      std::copy(master.begin(), master.end(), executor_->persistent("average." + table.name).begin());
    }
  }
  refresh_working();
}

void Engine::refresh_working() {
  if (!trains()) return;
  const std::string own = set_->cut_buckets ? "part." : "working.";
  for (size_t t = 0; t < set_->tables.size(); ++t) {
    const BucketTable& table = set_->tables[t];
    if (!executor_->has_persistent(own + table.name)) continue;
    const auto* master = reinterpret_cast<const float*>(executor_->persistent("master." + table.name).data());
    const auto working = executor_->persistent(own + table.name);
    const auto convert = [&](auto* out) {
      using Element = std::remove_pointer_t<decltype(out)>;
      for (int64_t i = 0; i < kept_elements(t); ++i) out[i] = Element(master[i]);
    };
    if (options_.compile.precision == Precision::bf16) {
      convert(reinterpret_cast<BFloat16*>(working.data()));
    } else {
      convert(reinterpret_cast<Float16*>(working.data()));
    }
  }
  for (size_t i = 0; i < set_->programs.size(); ++i) {
    if (set_->programs[i].kind == ProgramKind::gather) executor_->run(i, StepInputs{});
  }
}

void Engine::swap_average() {
  for (const BucketTable& table : set_->tables) {
    const auto master = executor_->persistent("master." + table.name);
    const auto average = executor_->persistent("average." + table.name);
    std::swap_ranges(master.begin(), master.end(), average.begin());
  }
}

void Engine::with_average(const std::function<void()>& work) {
  swap_average();
  try {
    refresh_working();
    work();
  } catch (...) {
    swap_average();
    try {
      refresh_working();
    } catch (const Error&) {  // ranks are lost, which is the error already
    }
    throw;
  }
  swap_average();
  refresh_working();
}

size_t Engine::program_index(ProgramKind kind, int32_t micro_batches, int64_t sequence_length) const {
  for (size_t i = 0; i < set_->programs.size(); ++i) {
    const StepProgram& program = set_->programs[i];
    if (program.kind == kind && program.micro_batches == micro_batches &&
        program.sequence_length == sequence_length) {
      return i;
    }
  }
  ATHANOR_ASSERT(false, "no {} program for {} micro-batches of {} tokens", name_of(kind), micro_batches,
                 sequence_length);
  return 0;
}

size_t Engine::train_index(size_t micro_batches) const {
  return program_index(ProgramKind::train, static_cast<int32_t>(micro_batches), options_.sequence_length);
}

StepInputs Engine::inputs_for(std::span<const Batch> batches, int64_t step, int64_t optimizer_step,
                              double learning_rate) {
  StepInputs inputs;
  inputs.step = step;
  inputs.optimizer_step = optimizer_step + 1;
  inputs.seed = options_.seed;
  inputs.learning_rate = learning_rate;
  inputs.loss_scale = loss_scale_;
  inputs.micro_batches.reserve(batches.size());
  for (const Batch& batch : batches) {
    ATHANOR_ASSERT(batch.sequence_length * set_->mesh.size(Axis::context) == options_.sequence_length);
    ATHANOR_ASSERT(batch.indices.size() == batch.token_ids.size(), "a batch without indices");
    inputs.micro_batches.push_back({batch.token_ids.data(), batch.labels.data(), batch.positions.data(),
                                    batch.documents.data(), batch.indices.data(), batch.sample_ids.data()});
  }
  return inputs;
}

StepResult Engine::result() const {
  StepResult result;
  result.loss_sum = executor_->scalar("loss");
  result.valid_tokens = executor_->scalar("valid_tokens");
  result.loss = result.valid_tokens > 0 ? result.loss_sum / result.valid_tokens
                                        : std::numeric_limits<double>::quiet_NaN();
  result.gradient_norm = executor_->scalar("gradient_norm");
  result.clip_factor = executor_->scalar("clip_factor");
  result.skipped = executor_->scalar("skip") != 0;
  return result;
}

StepResult Engine::train_step(std::span<const Batch> micro_batches, int64_t step, int64_t optimizer_step,
                              double learning_rate, const SkipLimits& limits) {
  const auto begin = std::chrono::steady_clock::now();
  StepInputs inputs = inputs_for(micro_batches, step, optimizer_step, learning_rate);
  inputs.loss_limit = limits.loss;
  inputs.norm_limit = limits.gradient_norm;
  executor_->run(train_index(micro_batches.size()), inputs);
  StepResult step_result = result();
  step_result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return step_result;
}

StepResult Engine::observed_step(std::span<const Batch> micro_batches, int64_t step, int64_t optimizer_step,
                                 double learning_rate, const std::function<void(const Observation&)>& observe,
                                 const SkipLimits& limits) {
  StepInputs inputs = inputs_for(micro_batches, step, optimizer_step, learning_rate);
  inputs.loss_limit = limits.loss;
  inputs.norm_limit = limits.gradient_norm;
  executor_->run_observed(train_index(micro_batches.size()), inputs, observe);
  return result();
}

std::optional<NonFinite> Engine::locate_non_finite(std::span<const Batch> micro_batches, int64_t step,
                                                   int64_t optimizer_step, double learning_rate) {
  const StepInputs inputs = inputs_for(micro_batches, step, optimizer_step, learning_rate);
  const size_t index = train_index(micro_batches.size());
  std::optional<NonFinite> found;
  int64_t order = 0;
  executor_->run_observed(index, inputs, {}, [&](const Observation& seen) {
    ++order;
    if (seen.operation->kind == OperationKind::clip)
      return true;            // the commit point: what follows would write
    if (found) return false;  // the other ranks go on to the commit point
    const StepProgram& program = set_->programs[index];
    const Call& call = program.calls[static_cast<size_t>(seen.address.call)];
    const Graph& graph = program.templates[static_cast<size_t>(call.template_id)].graph;
    const auto look = [&](std::span<const TensorView> views, const std::vector<ValueId>& ids) {
      for (size_t i = 0; i < views.size() && !found; ++i) {
        const int64_t at = first_non_finite(views[i]);
        if (at < 0) continue;
        const int64_t width = views[i].shape.rank() >= 2 ? views[i].shape.elements_per_token() : 1;
        const int64_t element = views[i].shape.rank() >= 2 && !views[i].compact()
                                    ? at / width * views[i].token_stride + at % width
                                    : at;
        TensorPart holder;  // the one parameter, where several are merged
        for (const TensorPart& part : parts_of(graph, graph.value(ids[i]))) {
          if (part.first <= at) holder = part;
        }
        found = NonFinite{fill_layer(holder.name, call.layer),
                          std::string(name_of(seen.operation->kind)),
                          describe(seen.operation->part),
                          call.micro_batch,
                          at - holder.first,
                          value_at(views[i], element),
                          order};
      }
    };
    look(seen.inputs, seen.operation->inputs);  // a bad weight shows before what it spoils
    if (seen.operation->kind != OperationKind::attention) look(seen.outputs, seen.operation->outputs);
    return found.has_value() && options_.communicator == nullptr;
  });
  return found;
}

Engine::Evaluation Engine::evaluate(const Batch& batch) {
  const StepInputs inputs = inputs_for({&batch, 1}, 0, 0, 0);
  executor_->run(program_index(ProgramKind::validate, 1, options_.sequence_length), inputs);
  return {executor_->scalar("loss"), executor_->scalar("valid_tokens")};
}

int64_t Engine::kept_elements(size_t table) const {
  const int64_t whole = set_->tables[table].length();
  return set_->cut_buckets ? bucket_part_length(whole, set_->mesh) : whole;
}

Engine::MemberPlace Engine::place_of(size_t table, size_t member) const {
  const BucketMember& local = set_->tables[table].members[member];
  const BucketMember& whole = set_->whole_tables[table].members[member];
  const int64_t kept = kept_elements(table);
  const int64_t start = set_->cut_buckets ? kept * coordinate(coordinates_, Axis::shard) : 0;
  const int64_t begin = std::clamp<int64_t>(local.offset - start, 0, kept);
  const int64_t end = std::clamp<int64_t>(local.offset + local.length() - start, 0, kept);
  return {begin, end - begin,
          part_of_runs(stored_runs(whole.shape, local.placements, set_->mesh, coordinates_),
                       begin + start - local.offset, end - begin)};
}

DType Engine::type_of(size_t table, const std::string& buffer) {
  const auto bytes = static_cast<int64_t>(executor_->persistent(buffer).size());
  const int64_t elements = kept_elements(table);
  // Not always what was asked for: a backend without fp64 products runs the model in fp32.
  if (bytes == elements * 8) return DType::fp64;
  if (bytes == elements * 4) return DType::fp32;
  return options_.compile.precision == Precision::bf16 ? DType::bf16 : DType::fp16;
}

std::string Engine::weight_prefix() const {
  return trains() ? "master." : set_->cut_buckets ? "part." : "working.";
}

std::string Engine::weight_buffer(const BucketTable& table) const {
  return weight_prefix() + table.name;
}

std::vector<NamedTensor> Engine::members(const std::string& buffer, const std::string& prefix) {
  std::vector<NamedTensor> result;
  for (size_t t = 0; t < set_->tables.size(); ++t) {
    const BucketTable& table = set_->tables[t];
    if (!executor_->has_persistent(buffer + table.name)) continue;
    const DType dtype = type_of(t, buffer + table.name);
    const auto element = static_cast<int64_t>(size_of(dtype));
    const auto bytes = executor_->persistent(buffer + table.name);
    for (size_t m = 0; m < table.members.size(); ++m) {
      MemberPlace place = place_of(t, m);
      result.push_back({prefix + table.members[m].name, dtype, set_->whole_tables[t].members[m].shape,
                        bytes.subspan(static_cast<size_t>(place.first * element),
                                      static_cast<size_t>(place.count * element)),
                        std::move(place.runs)});
    }
  }
  return result;
}

std::vector<NamedTensor> Engine::weights() {
  return members(weight_prefix(), "");
}

std::vector<NamedTensor> Engine::gradients() {
  return members(set_->cut_buckets ? "reduced." : "gradients.", "");
}

std::vector<NamedTensor> Engine::state() {
  std::vector<NamedTensor> all = weights();
  for (const char* state : {"first_moment.", "second_moment.", "momentum.", "average."}) {
    const auto more = members(state, state);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

}  // namespace athanor
