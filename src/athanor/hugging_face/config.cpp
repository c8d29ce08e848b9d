#include "athanor/hugging_face/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "athanor/base/error.h"
#include "athanor/checkpoint/json_text.h"
#include "athanor/hugging_face/config_keys.h"

namespace athanor {
namespace {

using Json = nlohmann::json;

constexpr std::string_view file_name = "config.json";
constexpr int64_t largest_file = 1 << 20;  // bytes
constexpr std::string_view form_hint =
    "GPT-2, Llama 2 and 3 and Mistral are read; docs/formats/hugging_face.md lists the keys";

std::string shown(const Json& value) {
  return value.dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 100);
}

// The members of an object, read one by one. What was not asked for is left in `unread`.
class Members {
 public:
  Members(const Json& object, const std::string& path, std::string prefix)
      : object_(object), path_(path), prefix_(std::move(prefix)) {
    for (const auto& [key, value] : object.items()) unread_.insert(key);
  }

  [[noreturn]] void refuse(std::string_view key, const std::string& what) const {
    throw_user_error(fmt::format("'{}': {}{} {}", path_, prefix_, key, what), std::string(form_hint));
  }

  // Null if the key is missing or its value null.
  const Json* find(const std::string& key) {
    unread_.erase(key);
    const auto found = object_.find(key);
    return found == object_.end() || found->is_null() ? nullptr : &*found;
  }
  bool has(const std::string& key) const { return object_.contains(key); }

  std::optional<int64_t> integer(const std::string& key, int64_t least, int64_t most) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    const bool fits = value->is_number_unsigned() ? value->get<uint64_t>() <= static_cast<uint64_t>(most) &&
                                                        value->get<int64_t>() >= least
                      : value->is_number_integer() ? value->get<int64_t>() >= least
                                                   : false;
    if (!fits || value->get<int64_t>() > most) {
      refuse(key, fmt::format("is {}, not a whole number from {} to {}", shown(*value), least, most));
    }
    return value->get<int64_t>();
  }
  int64_t size(const std::string& key, int64_t most) {
    const auto value = integer(key, 1, most);
    if (!value) refuse(key, "is missing");
    return *value;
  }
  std::optional<double> number(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_number() || !std::isfinite(value->get<double>())) {
      refuse(key, fmt::format("is {}, not a number", shown(*value)));
    }
    return value->get<double>();
  }
  std::optional<bool> boolean(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_boolean()) refuse(key, fmt::format("is {}, not true or false", shown(*value)));
    return value->get<bool>();
  }
  std::optional<std::string> text(const std::string& key) {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_string()) refuse(key, fmt::format("is {}, not a text", shown(*value)));
    return value->get<std::string>();
  }
  // A number or a list of numbers, as ids of tokens.
  std::vector<int64_t> token_ids(const std::string& key) {
    const Json* value = find(key);
    std::vector<int64_t> ids;
    if (value == nullptr) return ids;
    const auto add = [&](const Json& item) {
      if (!item.is_number_unsigned() || item.get<uint64_t>() > (uint64_t{1} << 31)) {
        refuse(key, fmt::format("is {}, which is no token id", shown(*value)));
      }
      ids.push_back(item.get<int64_t>());
    };
    if (value->is_array() && value->size() <= 1000) {
      for (const Json& item : *value) add(item);
    } else {
      add(*value);
    }
    return ids;
  }
  const std::set<std::string>& unread() const { return unread_; }

 private:
  const Json& object_;
  const std::string& path_;
  std::string prefix_;
  std::set<std::string> unread_;
};

constexpr int64_t most_layers = 10000, most_width = 1 << 18, most_heads = 1 << 16, most_features = 1 << 21,
                  most_tokens = 1 << 26, most_positions = 1 << 24;

void check_architecture(Members& members, const std::array<std::string_view, 2>& known) {
  const Json* list = members.find("architectures");
  if (list == nullptr) return;
  for (const Json& item : *list) {
    const std::string name = item.is_string() ? item.get<std::string>() : shown(item);
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      members.refuse("architectures",
                     fmt::format("names {}; Athanor has {} and {}", name, known[0], known[1]));
    }
  }
}

// Dropout is one probability here.
void read_dropout(Members& members, ModelConfig& model) {
  const double residual = members.number("resid_pdrop").value_or(0.1),
               embedding = members.number("embd_pdrop").value_or(0.1),
               attention = members.number("attn_pdrop").value_or(0.1);
  if (residual != embedding || residual != attention) {
    members.refuse("resid_pdrop",
                   fmt::format("is {}, embd_pdrop {} and attn_pdrop {}: Athanor has one probability for all "
                               "three; make them equal (they matter in training only)",
                               residual, embedding, attention));
  }
  model.dropout = residual;
}

ModelConfig read_gpt2(Members& members) {
  check_architecture(members, {"GPT2LMHeadModel", "GPT2Model"});
  ModelConfig model = family_defaults("gpt2");
  model.vocabulary = members.size("vocab_size", most_tokens);
  model.maximum_positions = members.size("n_positions", most_positions);
  model.width = members.size("n_embd", most_width);
  model.layers = members.size("n_layer", most_layers);
  model.heads = members.size("n_head", most_heads);
  if (model.width % model.heads != 0) {
    members.refuse("n_embd", fmt::format("is {}, not a multiple of n_head, {}", model.width, model.heads));
  }
  model.feed_forward = members.integer("n_inner", 1, most_features).value_or(0);
  const std::string activation = members.text("activation_function").value_or("gelu_new");
  constexpr std::array tanh_forms = {"gelu_new", "gelu_pytorch_tanh", "gelu_fast"};
  if (std::find(tanh_forms.begin(), tanh_forms.end(), activation) == tanh_forms.end()) {
    members.refuse("activation_function",
                   fmt::format("is {}; Athanor has gelu_new (GELU in its tanh form)", activation));
  }
  model.norm_epsilon = members.number("layer_norm_epsilon").value_or(1e-5);
  model.tied_head = members.boolean("tie_word_embeddings").value_or(true);
  read_dropout(members, model);
  return model;
}

// Old: rope_theta and rope_scaling (whose type may be called `type`); new: rope_parameters with both.
void read_rotary(Members& members, ModelConfig& model, const std::string& path) {
  const Json* parameters = members.find("rope_parameters");
  const Json* scaling = members.find("rope_scaling");
  const auto theta = members.number("rope_theta");
  if (parameters != nullptr && scaling != nullptr && *parameters != *scaling) {
    members.refuse("rope_scaling", "and rope_parameters are both there and say different things");
  }
  model.rope_theta = theta.value_or(10000);
  const Json* chosen = parameters != nullptr ? parameters : scaling;
  if (chosen == nullptr) return;
  const std::string name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  if (!chosen->is_object()) members.refuse(name, fmt::format("is {}, not an object", shown(*chosen)));
  Members rope(*chosen, path, name + ".");
  const auto inner_theta = rope.number("rope_theta");
  if (inner_theta && theta && *inner_theta != *theta) {
    members.refuse("rope_theta", fmt::format("is {} and {}.rope_theta {}", *theta, name, *inner_theta));
  }
  if (inner_theta) model.rope_theta = *inner_theta;
  const auto modern = rope.text("rope_type"), old = rope.text("type");
  if (modern && old && *modern != *old)
    rope.refuse("type", fmt::format("is {} and rope_type {}", *old, *modern));
  const std::string type = modern ? *modern : old.value_or("default");
  if (const auto part = rope.number("partial_rotary_factor"); part && *part != 1) {
    rope.refuse("partial_rotary_factor", fmt::format("is {}; Athanor rotates whole heads", *part));
  }
  if (type == "llama3") {
    const auto wanted = [&](const std::string& key) {
      const auto value = rope.number(key);
      if (!value) rope.refuse(key, "is missing");
      return *value;
    };
    model.rope_factor = wanted("factor");
    model.rope_low = wanted("low_freq_factor");
    model.rope_high = wanted("high_freq_factor");
    const std::string original = "original_max_position_embeddings";
    model.rope_original = rope.size(original, most_positions);
  } else if (type != "default") {
    rope.refuse(modern ? "rope_type" : "type", fmt::format("is {}; Athanor has default and llama3", type));
  }
  if (!rope.unread().empty()) {
    const std::string& key = *rope.unread().begin();
    rope.refuse(key, fmt::format("has no part in rotary positions of type {}", type));
  }
}

ModelConfig read_llama(Members& members, const std::string& path, bool mistral) {
  check_architecture(members, mistral ? std::array<std::string_view, 2>{"MistralForCausalLM", "MistralModel"}
                                      : std::array<std::string_view, 2>{"LlamaForCausalLM", "LlamaModel"});
  ModelConfig model = family_defaults("llama");
  model.vocabulary = members.size("vocab_size", most_tokens);
  model.width = members.size("hidden_size", most_width);
  model.feed_forward = members.size("intermediate_size", most_features);
  model.layers = members.size("num_hidden_layers", most_layers);
  model.heads = members.size("num_attention_heads", most_heads);
  // Where the key is missing altogether Mistral's own default is 8, and its window 4096.
  const bool default_groups = mistral && !members.has("num_key_value_heads");
  model.key_value_heads =
      members.integer("num_key_value_heads", 1, most_heads).value_or(default_groups ? 8 : model.heads);
  model.head_dim = members.integer("head_dim", 1, most_heads).value_or(0);
  if (model.head_dim == 0 && model.width % model.heads != 0) {
    members.refuse("hidden_size",
                   fmt::format("is {}, not a multiple of num_attention_heads, {}, and there is "
                               "no head_dim",
                               model.width, model.heads));
  }
  if (model.heads % model.key_value_heads != 0) {
    members.refuse("num_attention_heads", fmt::format("is {}, not a multiple of num_key_value_heads, {}",
                                                      model.heads, model.key_value_heads));
  }
  if (model.head_dim_or_default() % 2 != 0) {
    members.refuse("head_dim",
                   fmt::format("is {}: rotary positions need an even one", model.head_dim_or_default()));
  }
  const std::string activation = members.text("hidden_act").value_or("silu");
  if (activation != "silu" && activation != "swish") {
    members.refuse("hidden_act", fmt::format("is {}; Athanor has silu", activation));
  }
  model.maximum_positions =
      members.integer("max_position_embeddings", 1, most_positions).value_or(mistral ? 131072 : 2048);
  model.norm_epsilon = members.number("rms_norm_eps").value_or(1e-6);
  model.tied_head = members.boolean("tie_word_embeddings").value_or(false);
  read_rotary(members, model, path);
  if (mistral) {
    const bool default_window = !members.has("sliding_window");
    model.window = members.integer("sliding_window", 1, most_positions).value_or(default_window ? 4096 : 0);
  } else {
    const bool attention = members.boolean("attention_bias").value_or(false),
               feed_forward = members.boolean("mlp_bias").value_or(false);
    if (attention != feed_forward) {
      members.refuse("attention_bias",
                     fmt::format("is {} and mlp_bias {}: Athanor has biases in all products of "
                                 "a block or in none",
                                 attention, feed_forward));
    }
    model.bias = attention;
  }
  // All layers alike.
  if (const Json* types = members.find("layer_types")) {
    const std::string wanted = model.window > 0 ? "sliding_attention" : "full_attention";
    const bool alike = types->is_array() && std::all_of(types->begin(), types->end(),
                                                        [&](const Json& type) { return type == wanted; });
    if (!alike) {
      members.refuse("layer_types",
                     fmt::format("is {}; Athanor reads models of {} only here", shown(*types), wanted));
    }
  }
  return model;
}

std::optional<DType> read_dtype(Members& members) {
  const auto modern = members.text("dtype"), old = members.text("torch_dtype");
  const std::string name = modern ? *modern : old.value_or("");
  for (const auto& [known, dtype] : {std::pair{"float64", DType::fp64},
                                     {"float32", DType::fp32},
                                     {"bfloat16", DType::bf16},
                                     {"float16", DType::fp16}}) {
    if (name == known || name == std::string("torch.") + known) return dtype;
  }
  return std::nullopt;  // the weights' own types count
}

}  // namespace

HuggingFaceConfig parse_hugging_face_config(std::string_view text, const std::string& path) {
  const Json json = parse_json(text, path, "config.json");
  if (!json.is_object()) {
    throw_user_error(fmt::format("'{}' holds {} and no object", path, json.type_name()),
                     std::string(form_hint));
  }
  Members members(json, path, "");
  HuggingFaceConfig config;
  const auto type = members.text("model_type");
  if (!type) members.refuse("model_type", "is missing");
  config.model_type = *type;
  if (*type != "gpt2" && *type != "llama" && *type != "mistral") {
    members.refuse("model_type",
                   fmt::format("is {}; Athanor has gpt2, llama and mistral", type->substr(0, 100)));
  }
  for (const auto& [key, value] : json.items()) {
    if (const auto must_be = refusal_of(*type, key, value); !must_be.empty()) {
      members.refuse(key, fmt::format("is {}; Athanor has {} only", shown(value), must_be));
    }
  }
  config.model = *type == "gpt2" ? read_gpt2(members) : read_llama(members, path, *type == "mistral");
  config.model.initial_deviation = members.number("initializer_range").value_or(0.02);
  config.dtype = read_dtype(members);
  config.tokens = {members.token_ids("bos_token_id"), members.token_ids("eos_token_id")};
  for (const std::string& key : members.unread()) {
    if (is_known_key(key)) continue;
    config.notes.push_back(fmt::format("'{}': {} = {} is not known and not used", path, key.substr(0, 100),
                                       shown(json.at(key))));
  }
  try {
    validate(config.model);
  } catch (const Error& error) {
    throw_user_error(fmt::format("'{}': {}", path, error.message()), error.hint());
  }
  return config;
}

SpecialTokenIds parse_special_token_ids(std::string_view text, const std::string& path) {
  const Json json = parse_json(text, path, "generation_config.json");
  if (!json.is_object()) {
    throw_user_error(fmt::format("'{}' holds {} and no object", path, json.type_name()),
                     std::string(form_hint));
  }
  Members members(json, path, "");
  return {members.token_ids("bos_token_id"), members.token_ids("eos_token_id")};
}

HuggingFaceConfig read_hugging_face_config(FileEnvironment& files, const std::string& folder) {
  const std::string path = join_path(folder, file_name);
  return parse_hugging_face_config(read_file(files, path, largest_file), path);
}

bool is_hugging_face_folder(FileEnvironment& files, const std::string& folder) {
  const auto status = files.status(folder);
  return status && status->is_directory && files.exists(join_path(folder, file_name));
}

}  // namespace athanor
