// The calls on which every backend is compared with the reference kernels.
//
// Called by conformance_test.cpp. The cases of an operation cover odd and empty sizes, optional operands
// present and absent, rows that stand apart in memory, outputs in the memory of inputs, accumulation, and the
// mixtures of types that programs have. A new row of the operation table needs its own cases: an operation
// without any fails the test.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "athanor/kernels/kernel_test_support.h"

namespace athanor::testing {

// The types that a precision gives to the values of a program.
struct TypeProfile {
  DType compute = DType::fp32;   // activations, working weights
  DType residual = DType::fp32;  // residual stream and its gradient
  DType wide = DType::fp32;      // statistics, weight gradients, logits, master weights, optimizer state
};

struct ConformanceCase {
  Call call;
  // The size of the terms that cancel in a result: errors are measured against the larger of this and the
  // largest element of the output.
  double scale = 0;
};

// Collects the cases of one operation. Operands are random and differ from each other.
class CaseBuilder {
 public:
  explicit CaseBuilder(const TypeProfile& types) : types_(types) {}
  const TypeProfile& types() const { return types_; }
  // Its types without repetition: compute, residual, wide.
  std::vector<DType> distinct_types() const {
    std::vector<DType> list{types_.compute};
    for (const DType dtype : {types_.residual, types_.wide}) {
      if (std::find(list.begin(), list.end(), dtype) == list.end()) list.push_back(dtype);
    }
    return list;
  }

  Tensor random(DType dtype, Shape shape, int64_t padding = 0, double low = -1, double high = 1) {
    return Tensor(dtype, shape, padding).fill("operand " + std::to_string(operands_++), low, high);
  }
  Tensor integers(Shape shape, int64_t below) {
    return random(DType::int32, shape, 0, 0, static_cast<double>(below));
  }
  // An output: holds a pattern that no kernel should read.
  static Tensor output(DType dtype, Shape shape, int64_t padding = 0) {
    return Tensor(dtype, shape, padding);
  }

  Call& add(OperationKind kind, std::string description, std::vector<Tensor> inputs,
            std::vector<Tensor> outputs, Attributes attributes = {}, double scale = 0) {
    ConformanceCase added;
    added.call.kind = kind;
    added.call.description = std::move(description);
    added.call.inputs = std::move(inputs);
    added.call.outputs = std::move(outputs);
    added.call.attributes = std::move(attributes);
    added.call.step.seed = 11;
    added.call.step.step = 5;
    added.scale = scale;
    cases_.push_back(std::move(added));
    return cases_.back().call;
  }
  // Adds the call twice: overwriting, and adding to random outputs.
  void add_accumulating(OperationKind kind, const std::string& description, const std::vector<Tensor>& inputs,
                        std::vector<Tensor> outputs, double scale = 0) {
    add(kind, description, inputs, outputs, {}, scale);
    for (Tensor& tensor : outputs) {
      if (tensor.present) tensor.fill("before " + std::to_string(operands_++));
    }
    add(kind, description + ", accumulating", inputs, std::move(outputs), {}, scale).accumulate = true;
  }
  // Adds the call again with output `o` in the memory of input `i`.
  void add_shared(Call call, size_t o, int i, double scale = 0) {
    call.shared_with.assign(call.outputs.size(), -1);
    call.shared_with[o] = i;
    call.description += ", in place";
    cases_.push_back({std::move(call), scale});
  }

  std::vector<ConformanceCase> take() { return std::move(cases_); }

 private:
  TypeProfile types_;
  std::vector<ConformanceCase> cases_;
  int operands_ = 0;
};

// What the kinds of each group add; false if the kind belongs to another group.
bool add_layer_cases(OperationKind kind, CaseBuilder& cases);      // products, norms, elementwise, embedding
bool add_attention_cases(OperationKind kind, CaseBuilder& cases);  // attention, rotary, dropout
bool add_cache_cases(OperationKind kind, CaseBuilder& cases);      // the key-value cache, vector products
bool add_step_cases(OperationKind kind, CaseBuilder& cases);       // batch, loss, optimizers
bool add_sharded_cases(OperationKind kind, CaseBuilder& cases);    // parts of what several ranks hold

// Batch and sequence sizes of 0, 1, 7, 33 and 130 tokens.
inline const std::vector<std::pair<int64_t, int64_t>>& token_shapes() {
  static const std::vector<std::pair<int64_t, int64_t>> shapes = {{1, 0}, {1, 1}, {1, 7}, {3, 11}, {2, 65}};
  return shapes;
}

}  // namespace athanor::testing
