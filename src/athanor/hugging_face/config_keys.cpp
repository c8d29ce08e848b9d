#include "athanor/hugging_face/config_keys.h"

#include <algorithm>
#include <array>

namespace athanor {
namespace {

using Json = nlohmann::json;

// Null is as good as the key's absence, and allowed but for `yes`.
enum class Only : uint8_t {
  nothing,  // no other value
  no,       // false
  yes,      // true
  zero,
  one,
  empty,  // an empty object or list
};

struct KeyRow {
  std::string_view key;
  Only only;
  std::string_view model_type = {};  // empty: all
};

constexpr std::array computing_keys = {
    KeyRow{"quantization_config", Only::nothing},
    KeyRow{"compression_config", Only::nothing},
    KeyRow{"auto_map", Only::empty},  // code that comes with the model
    KeyRow{"is_encoder_decoder", Only::no},
    KeyRow{"add_cross_attention", Only::no},
    KeyRow{"pruned_heads", Only::empty},
    // GPT-2.
    KeyRow{"scale_attn_weights", Only::yes},
    KeyRow{"scale_attn_by_inverse_layer_idx", Only::no},
    // Relatives of Llama that keep its name or its keys.
    KeyRow{"partial_rotary_factor", Only::one},
    KeyRow{"rotary_pct", Only::one},
    KeyRow{"rope_interleaved", Only::no},
    KeyRow{"rotary_interleaved", Only::no},
    KeyRow{"use_alibi", Only::no},
    KeyRow{"alibi", Only::no},
    KeyRow{"no_rope_layers", Only::empty},
    KeyRow{"no_rope_layer_interval", Only::nothing},
    KeyRow{"use_qk_norm", Only::no},
    KeyRow{"qk_norm", Only::no},
    KeyRow{"qk_layernorm", Only::no},
    KeyRow{"clip_qkv", Only::nothing},
    KeyRow{"attn_logit_softcapping", Only::nothing},
    KeyRow{"final_logit_softcapping", Only::nothing},
    KeyRow{"query_pre_attn_scalar", Only::nothing},
    KeyRow{"attn_temperature_tuning", Only::no},
    KeyRow{"attention_multiplier", Only::nothing},
    KeyRow{"embedding_multiplier", Only::one},
    KeyRow{"residual_multiplier", Only::one},
    KeyRow{"logits_scaling", Only::one},
    KeyRow{"logit_scale", Only::one},
    KeyRow{"scale_emb", Only::one},
    KeyRow{"scale_depth", Only::nothing},
    KeyRow{"dim_model_base", Only::nothing},
    KeyRow{"parallel_attn", Only::no},
    KeyRow{"use_parallel_residual", Only::no},
    KeyRow{"num_local_experts", Only::zero},
    KeyRow{"num_experts", Only::zero},
    KeyRow{"num_experts_per_tok", Only::zero},
    KeyRow{"use_sliding_window", Only::no, "llama"},
    KeyRow{"sliding_window", Only::nothing, "llama"},
    KeyRow{"attention_bias", Only::no, "mistral"},
    KeyRow{"mlp_bias", Only::no, "mistral"},
    KeyRow{"attention_dropout", Only::zero},
    KeyRow{"hidden_dropout", Only::zero},
};

// Keys that the reader of sizes takes itself, and keys that say nothing about the computation.
constexpr std::array<std::string_view, 70> harmless_keys = {
    "_attn_implementation",
    "_commit_hash",
    "_flash_attn_2_enabled",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bad_words_ids",
    "begin_suppress_tokens",
    "bos_token_id",
    "chunk_size_feed_forward",
    "cross_attention_hidden_size",
    "decoder_start_token_id",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "encoder_no_repeat_ngram_size",
    "eos_token_id",
    "exponential_decay_length_penalty",
    "finetuning_task",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "is_decoder",
    "label2id",
    "length_penalty",
    "max_length",
    "min_length",
    "model_type",
    "n_ctx",
    "name_or_path",
    "no_repeat_ngram_size",
    "num_beam_groups",
    "num_beams",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_scores",
    "pad_token_id",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "return_dict",
    "return_dict_in_generate",
    "sep_token_id",
    "summary_activation",
    "summary_first_dropout",
    "summary_proj_to_labels",
    "summary_type",
    "summary_use_proj",
    "suppress_tokens",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "top_k",
    "top_p",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "typical_p",
    "use_bfloat16",
    "use_cache",
};
static_assert(std::is_sorted(harmless_keys.begin(), harmless_keys.end()));

bool allowed(Only only, const Json& value) {
  if (value.is_null()) return only != Only::yes;
  switch (only) {
    case Only::nothing:
      return false;
    case Only::no:
      return value.is_boolean() && !value.get<bool>();
    case Only::yes:
      return value.is_boolean() && value.get<bool>();
    case Only::zero:
      return value.is_number() && value.get<double>() == 0;
    case Only::one:
      return value.is_number() && value.get<double>() == 1;
    case Only::empty:
      return value.is_structured() && value.empty();
  }
  return false;
}

std::string_view text_of(Only only) {
  switch (only) {
    case Only::nothing:
      return "null";
    case Only::no:
      return "false";
    case Only::yes:
      return "true";
    case Only::zero:
      return "0";
    case Only::one:
      return "1";
    case Only::empty:
      return "empty";
  }
  return "";
}

}  // namespace

std::string_view refusal_of(std::string_view model_type, std::string_view key, const Json& value) {
  for (const KeyRow& row : computing_keys) {
    const bool applies = row.model_type.empty() || row.model_type == model_type;
    if (row.key == key && applies && !allowed(row.only, value)) return text_of(row.only);
  }
  return {};
}

bool is_known_key(std::string_view key) {
  return std::binary_search(harmless_keys.begin(), harmless_keys.end(), key) ||
         std::any_of(computing_keys.begin(), computing_keys.end(),
                     [&](const KeyRow& row) { return row.key == key; });
}

}  // namespace athanor
