// Writing config.json: what a ModelConfig must be for it, and the keys of each type of model.

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "athanor/base/error.h"
#include "athanor/hugging_face/config.h"

namespace athanor {
namespace {

using Json = nlohmann::ordered_json;

// Options that keep a model from being of a type, with their values.
class Obstacles {
 public:
  void unless(bool fits, const std::string& option) {
    if (!fits) text_ += (text_.empty() ? "" : ", ") + option;
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

bool same_window_everywhere(const ModelConfig& model) {
  for (const int64_t window : model.window_pattern) {
    if (window != model.window_pattern.front()) return false;
  }
  return true;
}

void common_obstacles(Obstacles& obstacles, const ModelConfig& model) {
  obstacles.unless(!model.query_key_norm, "model.query_key_norm");
  obstacles.unless(!model.parallel_block, "model.parallel_block");
  obstacles.unless(model.logit_soft_cap == 0, "model.logit_soft_cap");
  obstacles.unless(same_window_everywhere(model), "model.window_pattern (with different windows)");
}

std::string obstacles_to_gpt2(const ModelConfig& model) {
  Obstacles obstacles;
  common_obstacles(obstacles, model);
  obstacles.unless(model.norm == NormKind::layer_norm, "model.norm = rms_norm");
  obstacles.unless(model.positions == PositionKind::learned, "model.positions = rotary");
  obstacles.unless(model.feed_forward_kind == FeedForwardKind::gelu, "model.feed_forward_kind = swiglu");
  obstacles.unless(model.bias, "model.bias = false");
  obstacles.unless(model.key_value_heads_or_default() == model.heads, "model.key_value_heads");
  obstacles.unless(model.head_dim_or_default() * model.heads == model.width, "model.head_dim");
  obstacles.unless(model.window_of(0) == 0, "model.window");
  return obstacles.text();
}

std::string obstacles_to_llama(const ModelConfig& model) {
  Obstacles obstacles;
  common_obstacles(obstacles, model);
  obstacles.unless(model.norm == NormKind::rms_norm, "model.norm = layer_norm");
  obstacles.unless(model.positions == PositionKind::rotary, "model.positions = learned");
  obstacles.unless(model.feed_forward_kind == FeedForwardKind::swiglu, "model.feed_forward_kind = gelu");
  if (model.window_of(0) > 0) obstacles.unless(!model.bias, "model.window together with model.bias");
  return obstacles.text();
}

Json token_ids(const std::vector<int64_t>& ids) {
  if (ids.empty()) return nullptr;
  if (ids.size() == 1) return ids.front();
  return ids;
}

std::string_view torch_name(DType dtype) {
  switch (dtype) {
    case DType::fp64:
      return "float64";
    case DType::bf16:
      return "bfloat16";
    case DType::fp16:
      return "float16";
    default:
      return "float32";
  }
}

Json gpt2_json(const ModelConfig& model) {
  Json json;
  json["architectures"] = {"GPT2LMHeadModel"};
  json["model_type"] = "gpt2";
  json["vocab_size"] = model.vocabulary;
  json["n_positions"] = model.maximum_positions;
  json["n_embd"] = model.width;
  json["n_layer"] = model.layers;
  json["n_head"] = model.heads;
  json["n_inner"] = model.feed_forward_or_default() == 4 * model.width
                        ? Json(nullptr)
                        : Json(model.feed_forward_or_default());
  json["activation_function"] = "gelu_new";
  for (const char* key : {"resid_pdrop", "embd_pdrop", "attn_pdrop"}) json[key] = model.dropout;
  json["layer_norm_epsilon"] = model.norm_epsilon;
  json["scale_attn_weights"] = true;
  json["scale_attn_by_inverse_layer_idx"] = false;
  return json;
}

// A factor of 1 scales nothing, but what stands beside it is the model's as well.
bool has_rope_scaling(const ModelConfig& model) {
  const ModelConfig plain;
  return model.rope_factor != plain.rope_factor || model.rope_low != plain.rope_low ||
         model.rope_high != plain.rope_high || model.rope_original != plain.rope_original;
}

Json llama_json(const ModelConfig& model, bool mistral) {
  Json json;
  json["architectures"] = {mistral ? "MistralForCausalLM" : "LlamaForCausalLM"};
  json["model_type"] = mistral ? "mistral" : "llama";
  json["vocab_size"] = model.vocabulary;
  json["hidden_size"] = model.width;
  json["intermediate_size"] = model.feed_forward_or_default();
  json["num_hidden_layers"] = model.layers;
  json["num_attention_heads"] = model.heads;
  json["num_key_value_heads"] = model.key_value_heads_or_default();
  json["head_dim"] = model.head_dim_or_default();
  json["hidden_act"] = "silu";
  json["max_position_embeddings"] = model.maximum_positions;
  json["rms_norm_eps"] = model.norm_epsilon;
  json["rope_theta"] = model.rope_theta;
  json["rope_scaling"] = nullptr;
  if (has_rope_scaling(model)) {
    json["rope_scaling"] = {{"rope_type", "llama3"},
                            {"factor", model.rope_factor},
                            {"low_freq_factor", model.rope_low},
                            {"high_freq_factor", model.rope_high},
                            {"original_max_position_embeddings", model.rope_original}};
  }
  json["attention_dropout"] = 0.0;
  if (mistral) {
    json["sliding_window"] = model.window_of(0);
  } else {
    json["attention_bias"] = model.bias;
    json["mlp_bias"] = model.bias;
  }
  return json;
}

}  // namespace

std::string hugging_face_type_of(const ModelConfig& model) {
  const std::string gpt2 = obstacles_to_gpt2(model), llama = obstacles_to_llama(model);
  if (gpt2.empty()) return "gpt2";
  if (llama.empty()) return model.window_of(0) > 0 ? "mistral" : "llama";
  throw_user_error(
      fmt::format(
          "no type of model of transformers that Athanor writes computes what this one does: it would be "
          "GPT-2 but for {}; it would be Llama or Mistral but for {}",
          gpt2, llama),
      "the checkpoint itself is a safetensors file that other programs can read");
}

std::string format_hugging_face_config(const ModelConfig& model, DType dtype, const SpecialTokenIds& tokens) {
  const std::string type = hugging_face_type_of(model);
  Json json = type == "gpt2" ? gpt2_json(model) : llama_json(model, type == "mistral");
  json["initializer_range"] = model.initial_deviation;
  json["tie_word_embeddings"] = model.tied_head;
  json["torch_dtype"] = torch_name(dtype);
  json["use_cache"] = true;
  json["bos_token_id"] = token_ids(tokens.begin);
  json["eos_token_id"] = token_ids(tokens.end);
  return json.dump(2) + "\n";
}

std::string format_generation_config(const SpecialTokenIds& tokens) {
  Json json;
  json["_from_model_config"] = true;
  json["bos_token_id"] = token_ids(tokens.begin);
  json["eos_token_id"] = token_ids(tokens.end);
  return json.dump(2) + "\n";
}

}  // namespace athanor
