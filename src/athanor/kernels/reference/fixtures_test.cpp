// Reference kernels against values and gradients that PyTorch computed in fp64
// (tests/data/fixtures/operators).
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "athanor/kernels/kernel_test_support.h"

namespace athanor::testing {
namespace {

// The operator file: a safetensors file of F64 and I32 tensors.
class Fixtures {
 public:
  Fixtures() {
    std::ifstream file(ATHANOR_SOURCE_DIR "/tests/data/fixtures/operators.safetensors", std::ios::binary);
    std::stringstream all;
    all << file.rdbuf();
    bytes_ = all.str();
    uint64_t length = 0;
    std::memcpy(&length, bytes_.data(), sizeof length);
    header_ = nlohmann::json::parse(bytes_.substr(sizeof length, length));
    data_ = sizeof length + length;
  }
  Tensor get(const std::string& name, Shape shape) const {
    const nlohmann::json& entry = header_.at(name);
    Tensor tensor(entry.at("dtype") == "F64" ? DType::fp64 : DType::int32, shape);
    const size_t begin = entry.at("data_offsets")[0], end = entry.at("data_offsets")[1];
    EXPECT_EQ(end - begin, tensor.bytes.size()) << name;
    std::memcpy(tensor.bytes.data(), bytes_.data() + data_ + begin, tensor.bytes.size());
    return tensor;
  }

 private:
  std::string bytes_;
  nlohmann::json header_;
  size_t data_ = 0;
};

const Fixtures& fixtures() {
  static const Fixtures all;
  return all;
}

// 1e-12 of the largest magnitude.
void expect_equal(const Tensor& actual, const Tensor& expected, const std::string& what,
                  double relative = 1e-12) {
  ASSERT_EQ(actual.elements(), expected.elements()) << what;
  double largest = 0;
  for (const double value : expected.values()) largest = std::max(largest, std::abs(value));
  for (int64_t i = 0; i < actual.elements(); ++i) {
    ASSERT_NEAR(actual.get(i), expected.get(i), relative * largest) << what << ", element " << i;
  }
}

Tensor empty(Shape shape) {
  return Tensor(DType::fp64, shape);
}
Tensor ones(Shape shape) {
  Tensor tensor(DType::fp64, shape);
  for (int64_t i = 0; i < tensor.elements(); ++i) tensor.set(i, 1);
  return tensor;
}

Call call(OperationKind kind, std::vector<Tensor> inputs, std::vector<Tensor> outputs,
          Attributes attributes = {}) {
  Call result;
  result.kind = kind;
  result.inputs = std::move(inputs);
  result.outputs = std::move(outputs);
  result.attributes = std::move(attributes);
  run_reference(result);
  return result;
}

TEST(ReferenceFixtures, Gelu) {
  const Shape shape{1, 1, 102};
  const Tensor x = fixtures().get("gelu_tanh.input", shape);
  expect_equal(call(OperationKind::gelu, {x}, {empty(shape)}).outputs[0],
               fixtures().get("gelu_tanh.output", shape), "y");
  expect_equal(call(OperationKind::gelu_gradient, {ones(shape), x}, {empty(shape)}).outputs[0],
               fixtures().get("gelu_tanh.gradient", shape), "dx");
}

TEST(ReferenceFixtures, Swiglu) {
  const Shape shape{1, 1, 102};
  const Tensor gate = fixtures().get("silu.input", shape);
  expect_equal(call(OperationKind::swiglu, {gate, ones(shape)}, {empty(shape)}).outputs[0],
               fixtures().get("silu.output", shape), "y");
  const Call gradient =
      call(OperationKind::swiglu_gradient, {ones(shape), gate, ones(shape)}, {empty(shape), empty(shape)});
  expect_equal(gradient.outputs[0], fixtures().get("silu.gradient", shape), "dgate");
  expect_equal(gradient.outputs[1], fixtures().get("silu.output", shape), "dup");
}

TEST(ReferenceFixtures, Rotary) {
  const Attributes plain{.theta = 10000};
  const Attributes llama31{
      .theta = 500000, .rope_factor = 8, .rope_low = 1, .rope_high = 4, .rope_original = 8192};
  Attributes llama32 = llama31;
  llama32.rope_factor = 32;
  const struct {
    std::string name;
    Attributes attributes;
    int64_t width;
  } cases[] = {
      {"rotary_plain", plain, 16}, {"rotary_llama3", llama31, 128}, {"rotary_llama3_32", llama32, 64}};
  for (const auto& c : cases) {
    const Shape shape{1, 7, 1, c.width};
    const Tensor positions = fixtures().get(c.name + ".positions", {1, 7});
    // Angles of up to 131071 radians lose digits: a frequency's last bit moves them by 1e-11.
    expect_equal(call(OperationKind::rotary, {fixtures().get(c.name + ".input", shape), positions},
                      {empty(shape)}, c.attributes)
                     .outputs[0],
                 fixtures().get(c.name + ".output", shape), c.name, 1e-10);
  }
}

TEST(ReferenceFixtures, LayerNorm) {
  const Shape shape{1, 5, 24}, tokens{1, 5}, feature{24};
  const auto get = [](const std::string& name, Shape s) { return fixtures().get("layer_norm." + name, s); };
  const Tensor x = get("input", shape), weight = get("weight", feature), dy = get("weighting", shape);
  const Call forward = call(OperationKind::layer_norm, {x, weight, get("bias", feature), Tensor()},
                            {empty(shape), empty(tokens), empty(tokens), Tensor()}, {.epsilon = 1e-5});
  expect_equal(forward.outputs[0], get("output", shape), "y");
  const Tensor &mean = forward.outputs[1], &rstd = forward.outputs[2];
  expect_equal(
      call(OperationKind::layer_norm_input_gradient, {dy, x, weight, mean, rstd, Tensor()}, {empty(shape)})
          .outputs[0],
      get("input.gradient", shape), "dx");
  const Call weights =
      call(OperationKind::layer_norm_weight_gradient, {dy, x, mean, rstd}, {empty(feature), empty(feature)});
  expect_equal(weights.outputs[0], get("weight.gradient", feature), "dweight");
  expect_equal(weights.outputs[1], get("bias.gradient", feature), "dbias");
}

TEST(ReferenceFixtures, RmsNorm) {
  const Shape shape{1, 5, 24}, tokens{1, 5}, feature{24};
  const auto get = [](const std::string& name, Shape s) { return fixtures().get("rms_norm." + name, s); };
  const Tensor x = get("input", shape), weight = get("weight", feature), dy = get("weighting", shape);
  const Call forward = call(OperationKind::rms_norm, {x, weight, Tensor()},
                            {empty(shape), empty(tokens), Tensor()}, {.epsilon = 1e-5});
  expect_equal(forward.outputs[0], get("output", shape), "y");
  const Tensor& rstd = forward.outputs[1];
  expect_equal(call(OperationKind::rms_norm_input_gradient, {dy, x, weight, rstd, Tensor()}, {empty(shape)})
                   .outputs[0],
               get("input.gradient", shape), "dx");
  expect_equal(call(OperationKind::rms_norm_weight_gradient, {dy, x, rstd}, {empty(feature)}).outputs[0],
               get("weight.gradient", feature), "dweight");
}

TEST(ReferenceFixtures, CrossEntropy) {
  const Attributes all{.label_smoothing = 0.1, .z_loss = 1e-3, .soft_cap = 5};
  for (const auto& [name, attributes] : {std::pair<std::string, Attributes>{"cross_entropy_plain", {}},
                                         std::pair<std::string, Attributes>{"cross_entropy_all", all}}) {
    const Shape shape{1, 6, 11}, tokens{1, 6};
    const Call loss =
        call(OperationKind::cross_entropy,
             {fixtures().get(name + ".logits", shape), fixtures().get(name + ".labels", tokens), ones({1})},
             {empty(tokens), empty(shape)}, attributes);
    expect_equal(loss.outputs[0], fixtures().get(name + ".losses", tokens), name + " loss");
    expect_equal(loss.outputs[1], fixtures().get(name + ".gradient", shape), name + " gradient");
  }
}

}  // namespace
}  // namespace athanor::testing
