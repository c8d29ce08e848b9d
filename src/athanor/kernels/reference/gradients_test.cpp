// Every gradient kernel against central finite differences of its forward kernel, in fp64 over odd shapes.
#include "athanor/kernels/kernel_test_support.h"

namespace athanor::testing {
namespace {

constexpr DType fp64 = DType::fp64;
constexpr DType int32 = DType::int32;

Tensor random(std::string_view name, Shape shape, double low = -1, double high = 1, int64_t padding = 0) {
  return Tensor(fp64, shape, padding).fill(name, low, high);
}
Tensor integers(std::string_view name, Shape shape, int64_t below) {
  return Tensor(int32, shape).fill(name, 0, static_cast<double>(below));
}
Tensor empty(Shape shape, int64_t padding = 0) {
  return Tensor(fp64, shape, padding);
}

// sum over outputs o of weighting[o] . output o, after running `forward`.
double objective(Call& forward, const std::vector<Tensor>& weightings) {
  run_reference(forward);
  double sum = 0;
  for (size_t o = 0; o < weightings.size(); ++o) {
    for (int64_t i = 0; i < weightings[o].elements(); ++i)
      sum += weightings[o].get(i) * forward.outputs[o].get(i);
  }
  return sum;
}

// The gradient of the objective with respect to input `index` must be what `gradient` holds.
void expect_gradient(Call forward, const std::vector<Tensor>& weightings, size_t index,
                     const Tensor& gradient) {
  SCOPED_TRACE(fmt::format("{} {}, input {}", name_of(forward.kind), forward.description, index));
  Tensor& input = forward.inputs[index];
  ASSERT_EQ(input.elements(), gradient.elements());
  const double step = 1e-5;
  std::vector<double> differences;
  double largest = 0;
  for (int64_t i = 0; i < input.elements(); ++i) {
    const double value = input.get(i);
    input.set(i, value + step);
    const double above = objective(forward, weightings);
    input.set(i, value - step);
    const double below = objective(forward, weightings);
    input.set(i, value);
    differences.push_back((above - below) / (2 * step));
    largest = std::max(largest, std::abs(differences.back()));
  }
  ASSERT_GT(largest, 1e-3) << "a gradient of zero tests nothing";
  for (size_t i = 0; i < differences.size(); ++i) {
    ASSERT_NEAR(gradient.get(static_cast<int64_t>(i)), differences[i], 1e-7 * std::max(1.0, largest))
        << "element " << i;
  }
}

Call call(OperationKind kind, std::vector<Tensor> inputs, std::vector<Tensor> outputs,
          Attributes attributes = {}, std::string description = "") {
  Call result;
  result.kind = kind;
  result.inputs = std::move(inputs);
  result.outputs = std::move(outputs);
  result.attributes = std::move(attributes);
  result.description = std::move(description);
  return result;
}

// Runs the call and hands back output `o`.
Tensor output_of(Call gradient, size_t o = 0) {
  run_reference(gradient);
  return gradient.outputs[o];
}

TEST(Gradients, Embedding) {
  const Tensor ids = integers("ids", {2, 7}, 5), dy = random("dy", {2, 7, 3}, -1, 1, 2);
  const Call forward = call(OperationKind::embedding, {random("table", {5, 3}), ids}, {empty({2, 7, 3}, 1)});
  const Tensor gradient = output_of(call(OperationKind::embedding_gradient, {dy, ids}, {empty({5, 3})}));
  expect_gradient(forward, {dy}, 0, gradient);
}

TEST(Gradients, Matmul) {
  for (const bool with_bias : {false, true}) {
    const Tensor x = random("x", {1, 5, 7}, -1, 1, 3), weight = random("w", {3, 7});
    const Tensor bias = with_bias ? random("b", {3}) : Tensor();
    const Tensor dy = random("dy", {1, 5, 3}, -1, 1, 1);
    const Call forward = call(OperationKind::matmul, {x, weight, bias}, {empty({1, 5, 3}, 4), Tensor()});
    expect_gradient(
        forward, {dy}, 0,
        output_of(call(OperationKind::matmul_input_gradient, {dy, weight, Tensor()}, {empty({1, 5, 7}, 2)})));
    expect_gradient(forward, {dy}, 1,
                    output_of(call(OperationKind::matmul_weight_gradient, {dy, x}, {empty({3, 7})})));
    if (with_bias) {
      expect_gradient(forward, {dy}, 2, output_of(call(OperationKind::bias_gradient, {dy}, {empty({3})})));
    }
  }
}

// y and activated = gelu(y): the gradient with respect to x flows through gelu_gradient.
TEST(Gradients, MatmulWithActivation) {
  const Tensor x = random("x", {2, 3, 5}), weight = random("w", {7, 5}), bias = random("b", {7});
  const Tensor dy = random("dy", {2, 3, 7});
  Call forward = call(OperationKind::matmul, {x, weight, bias}, {empty({2, 3, 7}), empty({2, 3, 7}, 5)},
                      {.activation = Activation::gelu});
  run_reference(forward);
  const Tensor inner =
      output_of(call(OperationKind::gelu_gradient, {dy, forward.outputs[0]}, {empty({2, 3, 7})}));
  Tensor none = empty({2, 3, 7});
  for (int64_t i = 0; i < none.elements(); ++i) none.set(i, 0);
  expect_gradient(
      forward, {none, dy}, 0,
      output_of(call(OperationKind::matmul_input_gradient, {inner, weight, Tensor()}, {empty({2, 3, 5})})));
}

TEST(Gradients, MatmulInputGradientAddsItsAddend) {
  const Tensor dy = random("dy", {1, 3, 2}), weight = random("w", {2, 5}),
               addend = random("a", {1, 3, 5}, -1, 1, 2);
  const Tensor plain =
      output_of(call(OperationKind::matmul_input_gradient, {dy, weight, Tensor()}, {empty({1, 3, 5})}));
  const Tensor sum =
      output_of(call(OperationKind::matmul_input_gradient, {dy, weight, addend}, {empty({1, 3, 5})}));
  for (int64_t i = 0; i < sum.elements(); ++i) EXPECT_DOUBLE_EQ(sum.get(i), plain.get(i) + addend.get(i));
}

// Both norms over [B,S,D], and over the heads of [B,S,H,E].
TEST(Gradients, LayerNorm) {
  for (const Shape& shape : {Shape{2, 3, 7}, Shape{1, 3, 2, 5}}) {
    for (const bool optional : {false, true}) {
      const Shape feature{shape[-1]};
      Shape statistic{shape[0], shape[1]};
      if (shape.rank() == 4) statistic.append(shape[2]);
      const Tensor x = random("x", shape, -1, 2, 3), weight = random("w", feature, 0.5, 1.5),
                   dy = random("dy", shape, -1, 1, 1);
      const Tensor bias = optional ? random("b", feature) : Tensor();
      const Tensor addend = optional ? random("a", shape, -2, 2, 2) : Tensor();
      const Tensor total = optional ? empty(shape, 2) : Tensor();
      Call forward = call(OperationKind::layer_norm, {x, weight, bias, addend},
                          {empty(shape, 2), empty(statistic), empty(statistic), total}, {.epsilon = 1e-3});
      run_reference(forward);
      const Tensor& mean = forward.outputs[1];
      const Tensor& rstd = forward.outputs[2];
      const Tensor& normed = optional ? forward.outputs[3] : x;
      // The residual stream goes on past the norm: its gradient joins that of the norm.
      const Tensor residual = optional ? random("r", shape, -1, 1, 1) : Tensor();
      const Tensor dx = output_of(call(OperationKind::layer_norm_input_gradient,
                                       {dy, normed, weight, mean, rstd, residual}, {empty(shape, 4)}));
      std::vector<Tensor> weightings{dy};
      if (optional) weightings = {dy, Tensor(), Tensor(), residual};
      expect_gradient(forward, weightings, 0, dx);
      if (optional) expect_gradient(forward, weightings, 3, dx);
      Call weights = call(OperationKind::layer_norm_weight_gradient, {dy, normed, mean, rstd},
                          {empty(feature), optional ? empty(feature) : Tensor()});
      run_reference(weights);
      expect_gradient(forward, weightings, 1, weights.outputs[0]);
      if (optional) expect_gradient(forward, weightings, 2, weights.outputs[1]);
    }
  }
}

TEST(Gradients, RmsNorm) {
  for (const Shape& shape : {Shape{2, 3, 7}, Shape{1, 3, 2, 5}}) {
    for (const bool optional : {false, true}) {
      const Shape feature{shape[-1]};
      Shape statistic{shape[0], shape[1]};
      if (shape.rank() == 4) statistic.append(shape[2]);
      const Tensor x = random("x", shape, -1, 2, 3), weight = random("w", feature, 0.5, 1.5),
                   dy = random("dy", shape, -1, 1, 1);
      const Tensor addend = optional ? random("a", shape, -2, 2, 2) : Tensor();
      Call forward =
          call(OperationKind::rms_norm, {x, weight, addend},
               {empty(shape, 2), empty(statistic), optional ? empty(shape, 2) : Tensor()}, {.epsilon = 1e-3});
      run_reference(forward);
      const Tensor& rstd = forward.outputs[1];
      const Tensor& normed = optional ? forward.outputs[2] : x;
      const Tensor residual = optional ? random("r", shape) : Tensor();
      const Tensor dx = output_of(call(OperationKind::rms_norm_input_gradient,
                                       {dy, normed, weight, rstd, residual}, {empty(shape, 4)}));
      std::vector<Tensor> weightings{dy};
      if (optional) weightings = {dy, Tensor(), residual};
      expect_gradient(forward, weightings, 0, dx);
      if (optional) expect_gradient(forward, weightings, 2, dx);
      expect_gradient(
          forward, weightings, 1,
          output_of(call(OperationKind::rms_norm_weight_gradient, {dy, normed, rstd}, {empty(feature)})));
    }
  }
}

TEST(Gradients, Gelu) {
  const Tensor x = random("x", {3, 1, 33}, -6, 6, 1), dy = random("dy", {3, 1, 33});
  expect_gradient(call(OperationKind::gelu, {x}, {empty({3, 1, 33})}), {dy}, 0,
                  output_of(call(OperationKind::gelu_gradient, {dy, x}, {empty({3, 1, 33}, 2)})));
}

TEST(Gradients, Swiglu) {
  const Shape shape{1, 3, 7};
  const Tensor gate = random("g", shape, -6, 6, 7), up = random("u", shape, -2, 2, 7),
               dy = random("dy", shape);
  const Call forward = call(OperationKind::swiglu, {gate, up}, {empty(shape)});
  Call gradient = call(OperationKind::swiglu_gradient, {dy, gate, up}, {empty(shape, 7), empty(shape, 7)});
  run_reference(gradient);
  expect_gradient(forward, {dy}, 0, gradient.outputs[0]);
  expect_gradient(forward, {dy}, 1, gradient.outputs[1]);
}

TEST(Gradients, AddHasTwoEqualOnes) {
  const Tensor a = random("a", {1, 3, 5}), b = random("b", {1, 3, 5}), dy = random("dy", {1, 3, 5});
  const Call forward = call(OperationKind::add, {a, b}, {empty({1, 3, 5})});
  expect_gradient(forward, {dy}, 0, dy);
  expect_gradient(forward, {dy}, 1, dy);
}

// The gradient of a rotation is the rotation back.
TEST(Gradients, Rotary) {
  for (const double factor : {1.0, 8.0}) {
    const Shape shape{2, 5, 3, 6};
    Attributes attributes{.theta = 100, .rope_factor = factor, .rope_original = 32};
    const Tensor positions = integers("p", {2, 5}, 90), dy = random("dy", shape);
    const Call forward =
        call(OperationKind::rotary, {random("x", shape, -1, 1, 2), positions}, {empty(shape, 1)}, attributes);
    attributes.inverse = true;
    expect_gradient(forward, {dy}, 0,
                    output_of(call(OperationKind::rotary, {dy, positions}, {empty(shape)}, attributes)));
  }
}

// Dropout is linear with a fixed mask: the same operation on dy is its gradient.
TEST(Gradients, Dropout) {
  const Shape shape{2, 3, 5};
  const Attributes attributes{.probability = 0.4, .name = "block.1.dropout"};
  const Tensor samples = Tensor(DType::int64, {2}).assign({7, 1LL << 40}),
               indices = integers("i", {2, 3}, 100);
  const Tensor dy = random("dy", shape);
  for (const Tensor& addend : {Tensor(), random("a", shape, -1, 1, 2)}) {
    const Call forward = call(OperationKind::dropout, {random("x", shape), samples, indices, addend},
                              {empty(shape, 3)}, attributes);
    expect_gradient(forward, {dy}, 0,
                    output_of(call(OperationKind::dropout, {dy, samples, indices, Tensor()}, {empty(shape)},
                                   attributes)));
  }
}

struct AttentionCase {
  std::string description;
  int64_t window = 0;
  double probability = 0;
  int64_t heads = 1, key_heads = 1;
};

TEST(Gradients, Attention) {
  for (const AttentionCase& c :
       {AttentionCase{"plain"}, AttentionCase{"grouped", 0, 0, 4, 2}, AttentionCase{"window", 3, 0, 2, 1},
        AttentionCase{"dropout", 0, 0.3, 2, 2}}) {
    const int64_t B = 2, S = 7, E = 5;
    const Shape query{B, S, c.heads, E}, key{B, S, c.key_heads, E}, statistic{B, S, c.heads};
    const Attributes attributes{
        .scale = 0.6, .probability = c.probability, .window = c.window, .name = "attention"};
    const Tensor q = random("q", query, -2, 2, 3), k = random("k", key, -2, 2, 1),
                 v = random("v", key, -2, 2, 2);
    // Two documents in the first sample, positions that restart; in the second, positions as they come.
    const Tensor documents = Tensor(int32, {B, S}).assign({0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0, 0});
    const Tensor positions = Tensor(int32, {B, S}).assign({0, 1, 2, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6});
    const Tensor indices = Tensor(int32, {B, S}).assign({0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 3, 4, 5, 6});
    const Tensor samples = Tensor(DType::int64, {B}).assign({3, 12345678901.0});
    const Tensor dout = random("dout", query);
    Call forward = call(OperationKind::attention, {q, k, v, positions, documents, indices, samples},
                        {empty(query, 1), empty(statistic)}, attributes, c.description);
    run_reference(forward);
    Call gradient =
        call(OperationKind::attention_gradient,
             {dout, q, k, v, forward.outputs[0], forward.outputs[1], positions, documents, indices, samples},
             {empty(query, 2), empty(key, 3), empty(key)}, attributes, c.description);
    run_reference(gradient);
    for (size_t input = 0; input < 3; ++input)
      expect_gradient(forward, {dout}, input, gradient.outputs[input]);
  }
}

struct LossCase {
  std::string description;
  double smoothing = 0, z_loss = 0, soft_cap = 0;
};

TEST(Gradients, CrossEntropy) {
  for (const LossCase& c : {LossCase{"plain"}, LossCase{"smoothing", 0.1}, LossCase{"z", 0, 0.01},
                            LossCase{"cap", 0, 0, 3}, LossCase{"all", 0.2, 0.03, 2}}) {
    const Shape shape{2, 3, 7};
    const Tensor labels = Tensor(int32, {2, 3}).assign({0, 6, ignored_label, 3, 3, 1});
    const Tensor logits = random("l", shape, -3, 3, 2), valid = Tensor(fp64, {1}).assign({5});
    Call forward =
        call(OperationKind::cross_entropy, {logits, labels, valid}, {empty({2, 3}), empty(shape, 1)},
             {.label_smoothing = c.smoothing, .z_loss = c.z_loss, .soft_cap = c.soft_cap}, c.description);
    forward.step.loss_scale = 8;
    run_reference(forward);
    Tensor weighting = empty({2, 3});
    for (int64_t i = 0; i < 6; ++i) weighting.set(i, 8.0 / 5.0);
    expect_gradient(forward, {weighting}, 0, forward.outputs[1]);
    for (int64_t i = 0; i < 7; ++i)
      EXPECT_EQ(forward.outputs[1].get(2 * 7 + i), 0) << "gradient of an ignored label";
  }
}

TEST(Gradients, SumAndCastPassThemOn) {
  const Tensor x = random("x", {1, 3, 5}, -1, 1, 2), one = Tensor(fp64, {1}).assign({1});
  Tensor ones = empty({1, 3, 5});
  for (int64_t i = 0; i < ones.elements(); ++i) ones.set(i, 1);
  expect_gradient(call(OperationKind::sum, {x}, {empty({1})}), {one}, 0, ones);
  const Tensor dy = random("dy", {1, 3, 5});
  expect_gradient(call(OperationKind::cast, {x}, {empty({1, 3, 5})}), {dy}, 0, dy);
}

}  // namespace
}  // namespace athanor::testing
