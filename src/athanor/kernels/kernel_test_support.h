// Tensors, calls and comparisons for tests of kernels. Called by tests only.
//
// A Call holds everything that one execution of an operation needs, in the order of its row; run() looks the
// kernel up in a table as a program would, checks the operands against the row, and gives it exactly the
// workspace that it asked for.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "athanor/base/philox.h"
#include "athanor/kernels/kernel.h"

namespace athanor::testing {

// An operand in memory of its exact size, so that sanitizers see a step beyond it. `padding` elements lie
// between tokens (only for shapes [B,S,..]); they hold a pattern that no kernel may change.
struct Tensor {
  Tensor() = default;  // absent
  Tensor(DType type, Shape dims, int64_t token_padding = 0)
      : present(true), dtype(type), shape(dims), padding(dims.rank() > 2 ? token_padding : 0) {
    const int64_t elements = padding == 0 ? shape.elements() : shape.tokens() * stride();
    bytes.assign(std::max<size_t>(1, static_cast<size_t>(elements) * size_of(dtype)), std::byte{0x5a});
  }

  int64_t per_token() const { return shape.elements_per_token(); }
  int64_t stride() const { return per_token() + padding; }
  int64_t elements() const { return present ? shape.elements() : 0; }
  // Where element `i` of the compact order lies.
  int64_t place(int64_t i) const { return padding == 0 ? i : i / per_token() * stride() + i % per_token(); }

  TensorView view() { return {present ? bytes.data() : nullptr, dtype, shape, present ? stride() : 0}; }
  OperandType type() const { return {dtype, shape, present}; }

  double get(int64_t i) const {
    const std::byte* at = bytes.data() + static_cast<size_t>(place(i)) * size_of(dtype);
    switch (dtype) {
      case DType::fp64:
        return read<double>(at);
      case DType::fp32:
        return static_cast<double>(read<float>(at));
      case DType::bf16:
        return static_cast<double>(static_cast<float>(read<BFloat16>(at)));
      case DType::fp16:
        return static_cast<double>(static_cast<float>(read<Float16>(at)));
      case DType::int64:
        return static_cast<double>(read<int64_t>(at));
      case DType::int32:
        return static_cast<double>(read<int32_t>(at));
      default:
        ADD_FAILURE() << "type";
        return 0;
    }
  }
  void set(int64_t i, double value) {
    std::byte* at = bytes.data() + static_cast<size_t>(place(i)) * size_of(dtype);
    switch (dtype) {
      case DType::fp64:
        write(at, value);
        break;
      case DType::fp32:
        write(at, static_cast<float>(value));
        break;
      case DType::bf16:
        write(at, BFloat16(static_cast<float>(value)));
        break;
      case DType::fp16:
        write(at, Float16(static_cast<float>(value)));
        break;
      case DType::int64:
        write(at, static_cast<int64_t>(value));
        break;
      case DType::int32:
        write(at, static_cast<int32_t>(value));
        break;
      default:
        ADD_FAILURE() << "type";
    }
  }
  // Uniform in [low, high), the same for the same name; integers are rounded down.
  Tensor& fill(std::string_view name, double low = -1, double high = 1) {
    const uint64_t seed = stable_hash(name);
    for (int64_t i = 0; i < elements(); ++i) {
      const double number = static_cast<double>(mix64(seed + static_cast<uint64_t>(i)) >> 11) * 0x1p-53;
      const double value = low + (high - low) * number;
      set(i, is_float(dtype) ? value : std::floor(value));
    }
    return *this;
  }
  Tensor& assign(const std::vector<double>& values) {
    EXPECT_EQ(static_cast<int64_t>(values.size()), elements());
    for (size_t i = 0; i < values.size(); ++i) set(static_cast<int64_t>(i), values[i]);
    return *this;
  }
  std::vector<double> values() const {
    std::vector<double> list(static_cast<size_t>(elements()));
    for (size_t i = 0; i < list.size(); ++i) list[i] = get(static_cast<int64_t>(i));
    return list;
  }
  bool padding_untouched() const {
    if (padding == 0) return true;
    for (int64_t token = 0; token < shape.tokens(); ++token) {
      const auto begin =
          bytes.begin() + (token * stride() + per_token()) * static_cast<int64_t>(size_of(dtype));
      const auto end = begin + padding * static_cast<int64_t>(size_of(dtype));
      if (std::any_of(begin, end, [](std::byte b) { return b != std::byte{0x5a}; })) return false;
    }
    return true;
  }

  bool present = false;
  DType dtype = DType::fp32;
  Shape shape;
  int64_t padding = 0;
  std::vector<std::byte> bytes;

 private:
  template <class T>
  static T read(const std::byte* at) {
    T value;
    std::memcpy(&value, at, sizeof(T));
    return value;
  }
  template <class T>
  static void write(std::byte* at, T value) {
    std::memcpy(at, &value, sizeof(T));
  }
};

struct Call {
  OperationKind kind{};
  Attributes attributes;
  std::vector<Tensor> inputs, outputs;
  bool accumulate = false;
  std::string description;  // for messages
  BucketTable table;
  StepInputs step;
  int32_t micro_batch = 0;
  int64_t first = 0;
  int32_t coordinate = 0;
  std::vector<int> shared_with =
      {};  // shared_with[o] = i: output o is the memory of input i; -1 or missing: no

  std::vector<OperandType> input_types() const { return types(inputs); }
  std::vector<OperandType> output_types() const { return types(outputs); }
  DType key() const { return key_dtype(input_types(), output_types()); }

 private:
  static std::vector<OperandType> types(const std::vector<Tensor>& tensors) {
    std::vector<OperandType> list;
    for (const Tensor& tensor : tensors) list.push_back(tensor.type());
    return list;
  }
};

// Runs the call with a kernel of `table`; the outputs are overwritten (an output that shares memory with an
// input is copied back from it). Test failures if the row refuses the operands or the table has no kernel.
inline void run(const KernelTable& table, Call& call, ThreadTeam& team) {
  const OperationRow& row = row_of(call.kind);
  SCOPED_TRACE(std::string(row.name) + " " + call.description);
  ASSERT_EQ(call.inputs.size(), row.inputs.size());
  ASSERT_EQ(call.outputs.size(), row.outputs.size());
  const std::vector<OperandType> input_types = call.input_types(), output_types = call.output_types();
  const auto problem = row.check(call.attributes, input_types, output_types);
  ASSERT_FALSE(problem.has_value()) << *problem;
  const Kernel* kernel = table.find(call.kind, call.key());
  ASSERT_NE(kernel, nullptr) << "no kernel for " << name_of(call.key());

  std::vector<TensorView> inputs, outputs;
  for (Tensor& tensor : call.inputs) inputs.push_back(tensor.view());
  for (Tensor& tensor : call.outputs) outputs.push_back(tensor.view());
  for (size_t o = 0; o < call.shared_with.size(); ++o) {
    if (call.shared_with[o] < 0) continue;
    const auto i = static_cast<size_t>(call.shared_with[o]);
    ASSERT_EQ(call.inputs[i].bytes.size(), call.outputs[o].bytes.size());
    outputs[o].data = inputs[i].data;
  }
  const int64_t bytes =
      kernel->workspace_bytes == nullptr
          ? 0
          : kernel->workspace_bytes(call.attributes, input_types, output_types, team.size());
  constexpr std::align_val_t alignment{64};
  const auto release = [](std::byte* p) { ::operator delete(p, alignment); };
  const std::unique_ptr<std::byte, decltype(release)> workspace(
      static_cast<std::byte*>(::operator new(static_cast<size_t>(bytes), alignment)), release);
  std::memset(workspace.get(), 0xff, static_cast<size_t>(bytes));  // NaNs: nothing may be read unwritten

  KernelArguments arguments;
  arguments.attributes = &call.attributes;
  arguments.inputs = inputs;
  arguments.outputs = outputs;
  arguments.workspace = {workspace.get(), static_cast<size_t>(bytes)};
  arguments.accumulate = call.accumulate;
  arguments.name_hash = stable_hash(call.attributes.name);
  arguments.micro_batch = call.micro_batch;
  arguments.first = call.first;
  arguments.coordinate = call.coordinate;
  arguments.table = &call.table;
  std::shared_ptr<const void> prepared;
  if (kernel->prepare != nullptr) prepared = kernel->prepare(arguments, team.size());
  arguments.prepared = prepared.get();
  kernel->run(arguments, KernelContext{.team = &team, .step = &call.step});
  for (size_t o = 0; o < call.shared_with.size(); ++o) {
    if (call.shared_with[o] >= 0)
      call.outputs[o].bytes = call.inputs[static_cast<size_t>(call.shared_with[o])].bytes;
  }
  for (const Tensor& output : call.outputs) ASSERT_TRUE(output.padding_untouched()) << "padding was written";
}

inline const KernelTable& reference_table() {
  static const KernelTable table = [] {
    KernelTable filled;
    add_reference_kernels(filled);
    return filled;
  }();
  return table;
}

inline void run_reference(Call& call) {
  static ThreadTeam team(1);
  run(reference_table(), call, team);
}

}  // namespace athanor::testing
