#include "model_fixture.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "athanor/base/error.h"
#include "athanor/base/file_environment.h"
#include "athanor/checkpoint/safetensors.h"

namespace athanor {

namespace {

template <class Stored>
std::vector<double> widen(const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / sizeof(Stored));
  for (size_t i = 0; i < values.size(); ++i) {
    Stored value{};
    std::memcpy(&value, bytes.data() + i * sizeof(Stored), sizeof(Stored));
    values[i] = static_cast<double>(value);
  }
  return values;
}

std::vector<double> widen(const std::vector<std::byte>& bytes, DType dtype) {
  switch (dtype) {
    case DType::fp64:
      return widen<double>(bytes);
    case DType::fp32:
      return widen<float>(bytes);
    case DType::int32:
      return widen<int32_t>(bytes);
    case DType::int64:
      return widen<int64_t>(bytes);
    default:
      ATHANOR_ASSERT(false, "fixtures hold no {}", name_of(dtype));
  }
}

ModelConfig parse_config(const nlohmann::json& json) {
  ModelConfig config = family_defaults(json.at("family"));
  config.vocabulary = json.at("vocabulary");
  config.width = json.at("width");
  config.layers = json.at("layers");
  config.heads = json.at("heads");
  config.key_value_heads = json.at("key_value_heads");
  config.head_dim = json.at("head_width");
  config.feed_forward = json.at("mlp_width");
  config.norm_epsilon = json.at("norm_epsilon");
  if (!json.at("max_positions").is_null()) config.maximum_positions = json.at("max_positions");
  if (!json.at("rotary_theta").is_null()) config.rope_theta = json.at("rotary_theta");
  if (const auto& scaling = json.at("rotary_scaling"); !scaling.is_null()) {
    config.rope_factor = scaling.at("factor");
    config.rope_low = scaling.at("low_frequency_factor");
    config.rope_high = scaling.at("high_frequency_factor");
    config.rope_original = scaling.at("original_positions");
  }
  config.bias = json.at("biases");
  config.tied_head = json.at("tied_head");
  config.query_key_norm = json.at("query_key_norm");
  config.parallel_block = json.at("parallel_block");
  config.window_pattern = json.at("windows").get<std::vector<int64_t>>();
  config.label_smoothing = json.at("label_smoothing");
  config.z_loss = json.at("z_loss");
  config.logit_soft_cap = json.at("logit_soft_cap");
  return config;
}

}  // namespace

ModelFixture::ModelFixture(const std::string& name) {
  const auto file = SafetensorsFile::open(system_files(),
                                          ATHANOR_SOURCE_DIR "/tests/data/fixtures/" + name + ".safetensors");
  for (const SafetensorsEntry& entry : file.header().tensors) {
    std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes()));
    file.read(entry, bytes);
    tensors[entry.name] = widen(bytes, *entry.dtype);
    if (entry.name == "tokens") {
      samples_ = entry.shape.at(1);
      tokens_ = entry.shape.at(2);
    }
  }
  config = parse_config(nlohmann::json::parse(file.header().metadata.at("config")));
  const auto optimizers = nlohmann::json::parse(file.header().metadata.at("optimizers"));
  settings_["clip"] = optimizers.at("gradient_clip");
  for (const char* kind : {"adamw", "lamb"}) {
    for (const auto& [key, value] : optimizers.at(kind).items())
      settings_[std::string(kind) + "." + key] = value;
  }
  valid_tokens = tensors.at("valid_tokens");
}

double ModelFixture::learning_rate(OptimizerKind optimizer) const {
  return settings_.at(optimizer == OptimizerKind::adamw ? "adamw.learning_rate" : "lamb.learning_rate");
}

EngineOptions ModelFixture::options(OptimizerKind optimizer) const {
  const std::string prefix = optimizer == OptimizerKind::adamw ? "adamw." : "lamb.";
  EngineOptions options;
  options.model = config;
  options.kernels = KernelSet::reference;
  options.threads = 1;
  options.micro_batch = samples_;
  options.sequence_length = tokens_;
  options.compile.precision = Precision::fp64;
  options.compile.optimizer.kind = optimizer;
  options.compile.optimizer.beta1 = settings_.at(prefix + "beta1");
  options.compile.optimizer.beta2 = settings_.at(prefix + "beta2");
  options.compile.optimizer.epsilon = settings_.at(prefix + "epsilon");
  options.compile.optimizer.weight_decay = settings_.at(prefix + "weight_decay");
  options.compile.optimizer.maximum_norm = settings_.at("clip");
  return options;
}

std::vector<Batch> ModelFixture::micro_batches(int64_t step, int64_t samples) const {
  std::vector<Batch> result;
  for (int64_t first = 0; first < samples_; first += samples) {
    Batch batch;
    batch.samples = samples;
    batch.sequence_length = tokens_;
    const auto take = [&](const char* name, std::vector<int32_t>& out) {
      const auto begin = static_cast<size_t>((step * samples_ + first) * tokens_);
      for (size_t i = 0; i < static_cast<size_t>(samples * tokens_); ++i) {
        out.push_back(static_cast<int32_t>(tensors.at(name)[begin + i]));
      }
    };
    take("tokens", batch.token_ids);
    take("labels", batch.labels);
    take("positions", batch.positions);
    take("documents", batch.documents);
    batch.indices = whole_indices(samples, tokens_);
    for (int64_t s = 0; s < samples; ++s) batch.sample_ids.push_back(step * samples_ + first + s);
    result.push_back(std::move(batch));
  }
  return result;
}

Batch ModelFixture::batch(int64_t step) const {
  return micro_batches(step, samples_).front();
}

void ModelFixture::set_weights(Engine& engine) const {
  for (const NamedTensor& weight : engine.weights()) {
    const auto& values = tensors.at("initial." + weight.name);
    ATHANOR_ASSERT(static_cast<int64_t>(values.size()) == weight.shape.elements(), "{}", weight.name);
    for (size_t i = 0; i < values.size(); ++i) {
      if (weight.dtype == DType::fp64) {
        reinterpret_cast<double*>(weight.bytes.data())[i] = values[i];
      } else {
        reinterpret_cast<float*>(weight.bytes.data())[i] = static_cast<float>(values[i]);
      }
    }
  }
  engine.refresh_working();
}

std::map<std::string, std::vector<double>> widened(const std::vector<NamedTensor>& tensors) {
  std::map<std::string, std::vector<double>> result;
  for (const NamedTensor& tensor : tensors) {
    result[tensor.name] =
        widen(std::vector<std::byte>(tensor.bytes.begin(), tensor.bytes.end()), tensor.dtype);
  }
  return result;
}

double relative_difference(const std::map<std::string, std::vector<double>>& expected,
                           const std::map<std::string, std::vector<double>>& actual) {
  double largest = 0, difference = 0;
  for (const auto& [name, values] : expected) {
    const auto& other = actual.at(name);
    if (other.size() != values.size()) return INFINITY;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::abs(values[i]));
      const double apart = std::abs(values[i] - other[i]);
      if (!(apart <= difference)) difference = apart;  // a NaN stays
    }
  }
  return difference / largest;
}

}  // namespace athanor
