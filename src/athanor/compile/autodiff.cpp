#include <map>
#include <set>

#include "athanor/base/error.h"
#include "athanor/compile/passes.h"

namespace athanor {

namespace {

class Differentiator {
 public:
  explicit Differentiator(Graph& graph) : graph_(graph), gradient_(graph.values.size(), no_value) {
    for (const Value& value : graph.values) names_.insert(value.name);
  }

  // Gradients of the outputs: an input for the residual stream; the loss seeds itself in cross_entropy.
  void seed() {
    for (const ValueId output : std::vector<ValueId>(graph_.outputs)) {
      if (graph_.value(output).role != Role::residual) continue;
      const ValueId gradient = make_gradient(output);
      graph_.inputs.push_back(gradient);
      set(output, gradient);
    }
  }

  void visit(const Operation& op) {
    using enum OperationKind;
    switch (op.kind) {
      case embedding:
        return visit_embedding(op);
      case matmul:
        return visit_matmul(op);
      case layer_norm:
        return visit_layer_norm(op);
      case rms_norm:
        return visit_rms_norm(op);
      case gelu:
        return contribute_alone(op.inputs[0], gelu_gradient, {gradient(op.outputs[0]), op.inputs[0]});
      case swiglu:
        return visit_swiglu(op);
      case rotary:
        return visit_rotary(op);
      case attention:
        return visit_attention(op);
      case add:
        contribute(op.inputs[0], gradient(op.outputs[0]));
        contribute(op.inputs[1], gradient(op.outputs[0]));
        return;
      case dropout:
        // The mask is a pure function of its key, so the same operation on dy is the gradient.
        return contribute_alone(op.inputs[0], dropout,
                                {gradient(op.outputs[0]), op.inputs[1], op.inputs[2], no_value},
                                op.attributes);
      case cross_entropy:
        return visit_cross_entropy(op);
      case sum:
        return;
      case slice:
        slices_[op.inputs[0]][op.attributes.offset] = gradient(op.outputs[0]);
        return;
      case reshape: {
        const ValueId dx = make_gradient(op.inputs[0]);
        append(reshape, {gradient(op.outputs[0])}, {dx}, {}, Part::input_gradient);
        return contribute(op.inputs[0], dx);
      }
      default:
        ATHANOR_ASSERT(false, "{} has no gradient rule", name_of(op.kind));
    }
  }

  // The gradient of each residual input becomes an output, named after it.
  void finish() {
    for (const ValueId input : std::vector<ValueId>(graph_.inputs)) {
      const Value& value = graph_.value(input);
      if (value.role == Role::residual) {
        const ValueId result = gradient(input);
        const std::string wanted = "d." + value.name;
        if (const ValueId other = graph_.find(wanted); other != result) {
          std::swap(graph_.value(other).name, graph_.value(result).name);
        }
        graph_.outputs.push_back(result);
      }
    }
    graph_.outputs.insert(graph_.outputs.end(), parameter_gradients_.begin(), parameter_gradients_.end());
  }

  bool reaches(const Operation& op) const {
    if (op.kind == OperationKind::cross_entropy || op.kind == OperationKind::sum) return true;
    for (const ValueId output : op.outputs) {
      if (output != no_value &&
          (gradient_[static_cast<size_t>(output)] != no_value || slices_.contains(output))) {
        return true;
      }
    }
    return false;
  }

 private:
  std::string unique(std::string name) {
    const std::string stem = name;
    for (int n = 2; !names_.insert(name).second; ++n) name = fmt::format("{}.{}", stem, n);
    return name;
  }

  ValueId make_gradient(ValueId of) {
    Value value = graph_.value(of);
    value.name = unique("d." + value.name);
    value.role = value.role == Role::residual    ? Role::residual_gradient
                 : value.role == Role::parameter ? Role::parameter_gradient
                                                 : Role::activation_gradient;
    const ValueId id = graph_.add_value(std::move(value));
    gradient_.resize(graph_.values.size(), no_value);
    return id;
  }

  void append(OperationKind kind, std::vector<ValueId> inputs, std::vector<ValueId> outputs,
              Attributes attributes, Part part) {
    graph_.add_operation(kind, std::move(inputs), std::move(outputs), std::move(attributes), part);
  }

  void set(ValueId of, ValueId gradient) { gradient_[static_cast<size_t>(of)] = gradient; }
  ValueId existing(ValueId of) const { return gradient_[static_cast<size_t>(of)]; }

  // The complete gradient of a value: all its readers have been visited.
  ValueId gradient(ValueId of) {
    if (const auto parts = slices_.find(of); parts != slices_.end()) {
      std::vector<ValueId> in_order;
      for (const auto& [offset, part] : parts->second) in_order.push_back(part);
      const ValueId whole = make_gradient(of);
      append(OperationKind::concat, in_order, {whole}, {}, Part::input_gradient);
      slices_.erase(parts);
      contribute(of, whole);
    }
    const ValueId result = existing(of);
    ATHANOR_ASSERT(result != no_value, "no gradient reaches {}", graph_.value(of).name);
    return result;
  }

  void contribute(ValueId of, ValueId part) {
    if (existing(of) == no_value) return set(of, part);
    const ValueId total = make_gradient(of);
    append(OperationKind::add, {existing(of), part}, {total}, {}, Part::input_gradient);
    set(of, total);
  }

  void contribute_alone(ValueId of, OperationKind kind, std::vector<ValueId> inputs,
                        Attributes attributes = {}) {
    const ValueId part = make_gradient(of);
    append(kind, std::move(inputs), {part}, std::move(attributes), Part::input_gradient);
    contribute(of, part);
  }

  // For kinds whose last input is an optional addend: what is there already goes in, the total comes out.
  void contribute_onto(ValueId of, OperationKind kind, std::vector<ValueId> inputs) {
    const ValueId before = existing(of);
    const ValueId total = make_gradient(of);
    inputs.push_back(before);
    append(kind, std::move(inputs), {total}, {}, Part::input_gradient);
    set(of, total);
  }

  ValueId parameter_gradient(ValueId parameter) {
    if (parameter == no_value) return no_value;
    const ValueId id = make_gradient(parameter);
    parameter_gradients_.push_back(id);
    return id;
  }

  void visit_embedding(const Operation& op) {
    append(OperationKind::embedding_gradient, {gradient(op.outputs[0]), op.inputs[1]},
           {parameter_gradient(op.inputs[0])}, {}, Part::weight_gradient);
  }

  void visit_matmul(const Operation& op) {
    const ValueId dy = gradient(op.outputs[0]);
    contribute_onto(op.inputs[0], OperationKind::matmul_input_gradient, {dy, op.inputs[1]});
    append(OperationKind::matmul_weight_gradient, {dy, op.inputs[0]}, {parameter_gradient(op.inputs[1])}, {},
           Part::weight_gradient);
    if (op.inputs[2] != no_value) {
      append(OperationKind::bias_gradient, {dy}, {parameter_gradient(op.inputs[2])}, {},
             Part::weight_gradient);
    }
  }

  void visit_layer_norm(const Operation& op) {
    const ValueId dy = gradient(op.outputs[0]), x = op.inputs[0], mean = op.outputs[1], rstd = op.outputs[2];
    contribute_onto(x, OperationKind::layer_norm_input_gradient, {dy, x, op.inputs[1], mean, rstd});
    append(OperationKind::layer_norm_weight_gradient, {dy, x, mean, rstd},
           {parameter_gradient(op.inputs[1]), parameter_gradient(op.inputs[2])}, {}, Part::weight_gradient);
  }

  void visit_rms_norm(const Operation& op) {
    const ValueId dy = gradient(op.outputs[0]), x = op.inputs[0], rstd = op.outputs[1];
    contribute_onto(x, OperationKind::rms_norm_input_gradient, {dy, x, op.inputs[1], rstd});
    append(OperationKind::rms_norm_weight_gradient, {dy, x, rstd}, {parameter_gradient(op.inputs[1])}, {},
           Part::weight_gradient);
  }

  void visit_swiglu(const Operation& op) {
    const ValueId dgate = make_gradient(op.inputs[0]), dup = make_gradient(op.inputs[1]);
    append(OperationKind::swiglu_gradient, {gradient(op.outputs[0]), op.inputs[0], op.inputs[1]},
           {dgate, dup}, {}, Part::input_gradient);
    contribute(op.inputs[0], dgate);
    contribute(op.inputs[1], dup);
  }

  void visit_rotary(const Operation& op) {
    Attributes attributes = op.attributes;
    attributes.inverse = !attributes.inverse;
    contribute_alone(op.inputs[0], OperationKind::rotary, {gradient(op.outputs[0]), op.inputs[1]},
                     attributes);
  }

  void visit_attention(const Operation& op) {
    std::vector<ValueId> inputs{gradient(op.outputs[0]), op.inputs[0], op.inputs[1], op.inputs[2],
                                op.outputs[0],           op.outputs[1]};
    inputs.insert(inputs.end(), op.inputs.begin() + 3, op.inputs.end());
    std::vector<ValueId> outputs;
    for (int i = 0; i < 3; ++i) outputs.push_back(make_gradient(op.inputs[static_cast<size_t>(i)]));
    append(OperationKind::attention_gradient, std::move(inputs), outputs, op.attributes,
           Part::input_gradient);
    for (size_t i = 0; i < 3; ++i) contribute(op.inputs[i], outputs[i]);
  }

  // The kernel that computes the loss has the softmax at hand and forms the gradient as well.
  void visit_cross_entropy(const Operation& op) {
    for (Operation& original : graph_.operations) {
      if (original.kind != OperationKind::cross_entropy || original.outputs[0] != op.outputs[0]) continue;
      const ValueId valid = graph_.add_value({.name = "valid_tokens",
                                              .dtype = DType::fp64,
                                              .shape = {1},
                                              .placements = {},
                                              .role = Role::scalar});
      graph_.inputs.push_back(valid);
      const ValueId dlogits = make_gradient(op.inputs[0]);
      original.inputs[2] = valid;
      original.outputs[1] = dlogits;
      set(op.inputs[0], dlogits);
      return;
    }
  }

  Graph& graph_;
  std::vector<ValueId> gradient_;
  std::map<ValueId, std::map<int64_t, ValueId>> slices_;
  std::vector<ValueId> parameter_gradients_;
  std::set<std::string> names_;
};

}  // namespace

Segment differentiate(Segment segment) {
  Differentiator differentiator(segment.graph);
  differentiator.seed();
  for (int64_t i = segment.forward_count; i-- > 0;) {
    const Operation op = segment.graph.operations[static_cast<size_t>(i)];  // a copy: visiting appends
    if (differentiator.reaches(op)) differentiator.visit(op);
  }
  differentiator.finish();
  return segment;
}

}  // namespace athanor
