#include "athanor/hugging_face/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "athanor/base/error.h"
#include "athanor/hugging_face/config_keys.h"

namespace athanor {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

constexpr const char* fixtures = ATHANOR_SOURCE_DIR "/tests/data/hugging_face/";

std::string refusal(const std::string& text) {
  try {
    parse_hugging_face_config(text, "d/config.json");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::user);
    EXPECT_FALSE(error.hint().empty());
    EXPECT_THAT(error.message(), HasSubstr("'d/config.json'"));
    return error.message();
  }
  ADD_FAILURE() << "accepted: " << text;
  return {};
}

HuggingFaceConfig parse(const std::string& text) {
  return parse_hugging_face_config(text, "d/config.json");
}

// Members are put behind the opening brace of a sound configuration, where they win over nothing: each key
// once.
std::string with(const std::string& members, const std::string& base) {
  return "{" + members + "," + base;
}

constexpr const char* small_gpt2 =
    R"("model_type":"gpt2","vocab_size":61,"n_positions":32,"n_embd":24,"n_layer":2,"n_head":4})";
constexpr const char* small_llama =
    R"("model_type":"llama","vocab_size":61,"hidden_size":24,"intermediate_size":40,"num_hidden_layers":2,)"
    R"("num_attention_heads":4})";
constexpr const char* small_mistral =
    R"("model_type":"mistral","vocab_size":61,"hidden_size":64,"intermediate_size":40,"num_hidden_layers":2,)"
    R"("num_attention_heads":16})";

TEST(HuggingFaceConfig, Gpt2AsItIsOnTheHub) {
  const auto config = parse(R"({
    "activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
    "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
    "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
    "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
    "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
    "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257})");
  ModelConfig expected = family_defaults("gpt2");
  expected.dropout = 0.1;
  EXPECT_EQ(config.model, expected);
  EXPECT_EQ(config.tokens, (SpecialTokenIds{{50256}, {50256}}));
  EXPECT_THAT(config.notes, IsEmpty());
  EXPECT_EQ(config.dtype, std::nullopt);
}

TEST(HuggingFaceConfig, Llama2AsItIsOnTheHub) {
  const auto config = parse(R"({
    "_name_or_path": "meta-llama/Llama-2-7b-hf", "architectures": ["LlamaForCausalLM"], "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 11008, "max_position_embeddings": 4096, "model_type": "llama", "num_attention_heads": 32,
    "num_hidden_layers": 32, "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": null, "tie_word_embeddings": false, "torch_dtype": "float16",
    "transformers_version": "4.31.0.dev0", "use_cache": true, "vocab_size": 32000})");
  ModelConfig expected = family_defaults("llama");
  expected.layers = 32;
  expected.width = 4096;
  expected.heads = expected.key_value_heads = 32;
  expected.feed_forward = 11008;
  expected.vocabulary = 32000;
  expected.maximum_positions = 4096;
  EXPECT_EQ(config.model, expected);
  EXPECT_EQ(config.dtype, DType::fp16);
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(HuggingFaceConfig, Llama31AsItIsOnTheHub) {
  const auto config = parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
    "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": 4096, "initializer_range": 0.02,
    "intermediate_size": 14336, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8, "pretraining_tp": 1,
    "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0,
    "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
    "vocab_size": 128256})");
  ModelConfig expected = family_defaults("llama");
  expected.layers = 32;
  expected.width = 4096;
  expected.heads = 32;
  expected.key_value_heads = 8;
  expected.feed_forward = 14336;
  expected.vocabulary = 128256;
  expected.maximum_positions = 131072;
  expected.rope_theta = 500000;
  expected.rope_factor = 8;
  EXPECT_EQ(config.model, expected);
  EXPECT_EQ(config.tokens.end, (std::vector<int64_t>{128001, 128008, 128009}));
  EXPECT_THAT(config.notes, IsEmpty());
}

TEST(HuggingFaceConfig, MistralAsItIsOnTheHub) {
  const std::string text = R"({
    "architectures": ["MistralForCausalLM"], "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
    "hidden_size": 4096, "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
    "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 8,
    "rms_norm_eps": 1e-05, "rope_theta": 10000.0, "sliding_window": 4096, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "transformers_version": "4.34.0.dev0", "use_cache": true, "vocab_size": 32000})";
  const auto first = parse(text);
  EXPECT_EQ(first.model.window, 4096);
  EXPECT_EQ(first.model.key_value_heads, 8);
  EXPECT_EQ(first.dtype, DType::bf16);
  EXPECT_THAT(first.notes, IsEmpty());
  std::string later = text;
  later.replace(later.find("\"sliding_window\": 4096"), 22, "\"sliding_window\": null");
  EXPECT_EQ(parse(later).model.window, 0);
  EXPECT_EQ(hugging_face_type_of(first.model), "mistral");
}

TEST(HuggingFaceConfig, OldAndNewRotaryKeysSayTheSame) {
  const std::string scaling = R"("factor":4.0,"low_freq_factor":1.0,"high_freq_factor":4.0,)"
                              R"("original_max_position_embeddings":16)";
  const auto old =
      parse(with(R"("rope_theta":500,"rope_scaling":{"rope_type":"llama3",)" + scaling + "}", small_llama));
  const auto oldest =
      parse(with(R"("rope_theta":500.0,"rope_scaling":{"type":"llama3",)" + scaling + "}", small_llama));
  const auto modern = parse(
      with(R"("rope_parameters":{"rope_theta":500.0,"rope_type":"llama3",)" + scaling + "}", small_llama));
  EXPECT_EQ(old.model.rope_theta, 500);
  EXPECT_EQ(old.model.rope_factor, 4);
  EXPECT_EQ(old.model.rope_original, 16);
  EXPECT_EQ(old.model, oldest.model);
  EXPECT_EQ(old.model, modern.model);
  EXPECT_EQ(parse(with(R"("rope_parameters":{"rope_theta":500,"rope_type":"default"})", small_llama)).model,
            parse(with(R"("rope_theta":500,"rope_scaling":null)", small_llama)).model);
}

TEST(HuggingFaceConfig, AScalingByOneIsWrittenWithItsOtherNumbers) {
  const auto config = parse(with(R"("rope_scaling":{"rope_type":"llama3","factor":1,"low_freq_factor":2,)"
                                 R"("high_freq_factor":5,"original_max_position_embeddings":16})",
                                 small_llama));
  EXPECT_EQ(config.model.rope_factor, 1);
  EXPECT_EQ(config.model.rope_low, 2);
  const auto again = parse(format_hugging_face_config(config.model, DType::fp32, config.tokens));
  EXPECT_EQ(again.model.rope_low, 2);
  EXPECT_EQ(again.model.rope_high, 5);
  EXPECT_EQ(again.model.rope_original, 16);
}

TEST(HuggingFaceConfig, DefaultsAreThoseOfTransformers) {
  const auto gpt2 = parse(std::string("{") + small_gpt2).model;
  EXPECT_EQ(gpt2.norm_epsilon, 1e-5);
  EXPECT_TRUE(gpt2.tied_head);
  EXPECT_EQ(gpt2.dropout, 0.1);
  EXPECT_EQ(gpt2.feed_forward_or_default(), 96);
  const auto llama = parse(std::string("{") + small_llama).model;
  EXPECT_EQ(llama.norm_epsilon, 1e-6);
  EXPECT_EQ(llama.rope_theta, 10000);
  EXPECT_EQ(llama.key_value_heads, 4);
  EXPECT_FALSE(llama.tied_head);
  EXPECT_FALSE(llama.bias);
  EXPECT_EQ(llama.maximum_positions, 2048);
  const auto mistral = parse(std::string("{") + small_mistral).model;
  EXPECT_EQ(mistral.window, 4096);
  EXPECT_EQ(mistral.key_value_heads, 8);
  EXPECT_EQ(mistral.maximum_positions, 131072);
  EXPECT_EQ(parse(with(R"("num_key_value_heads":null)", small_mistral)).model.key_value_heads, 16);
}

TEST(HuggingFaceConfig, FixturesOfTransformersFive) {
  const auto llama = read_hugging_face_config(system_files(), fixtures + std::string("llama"));
  EXPECT_EQ(llama.model.rope_factor, 4);
  EXPECT_EQ(llama.model.rope_original, 16);
  EXPECT_EQ(llama.model.rope_theta, 10000);
  EXPECT_EQ(llama.dtype, DType::bf16);
  const auto tied = read_hugging_face_config(system_files(), fixtures + std::string("llama_tied"));
  EXPECT_TRUE(tied.model.tied_head);
  EXPECT_TRUE(tied.model.bias);
  EXPECT_EQ(tied.model.head_dim, 8);
  EXPECT_EQ(tied.model.rope_theta, 500);
  for (const char* name : {"gpt2", "gpt2_inner", "llama", "llama_tied", "mistral"}) {
    EXPECT_THAT(read_hugging_face_config(system_files(), fixtures + std::string(name)).notes, IsEmpty())
        << name;
  }
}

TEST(HuggingFaceConfig, WhatIsLackingIsRefusedByName) {
  const auto gpt2 = [](const std::string& members) { return refusal(with(members, small_gpt2)); };
  const auto llama = [](const std::string& members) { return refusal(with(members, small_llama)); };
  const auto mistral = [](const std::string& members) { return refusal(with(members, small_mistral)); };
  EXPECT_THAT(gpt2(R"("activation_function":"gelu")"), HasSubstr("activation_function is gelu"));
  EXPECT_THAT(gpt2(R"("scale_attn_weights":false)"), HasSubstr("scale_attn_weights is false"));
  EXPECT_THAT(gpt2(R"("scale_attn_by_inverse_layer_idx":true)"),
              HasSubstr("scale_attn_by_inverse_layer_idx"));
  EXPECT_THAT(gpt2(R"("add_cross_attention":true)"), HasSubstr("add_cross_attention is true"));
  EXPECT_THAT(gpt2(R"("attn_pdrop":0.2)"), HasSubstr("attn_pdrop 0.2"));
  EXPECT_THAT(gpt2(R"("architectures":["GPT2ForSequenceClassification"])"), HasSubstr("GPT2ForSequence"));
  EXPECT_THAT(gpt2(R"("quantization_config":{"bits":4})"), HasSubstr("quantization_config"));
  EXPECT_THAT(llama(R"("rope_scaling":{"type":"linear","factor":2.0})"),
              HasSubstr("rope_scaling.type is linear"));
  EXPECT_THAT(llama(R"("rope_scaling":{"rope_type":"yarn","factor":2.0})"), HasSubstr("rope_type is yarn"));
  EXPECT_THAT(llama(R"("rope_parameters":{"rope_type":"dynamic","factor":2.0})"),
              HasSubstr("rope_type is dynamic"));
  EXPECT_THAT(
      llama(R"("rope_parameters":{"rope_type":"default","rope_theta":1e4,"partial_rotary_factor":0.5})"),
      HasSubstr("partial_rotary_factor is 0.5"));
  EXPECT_THAT(llama(R"("rope_parameters":{"rope_type":"default","factor":2.0})"),
              HasSubstr("factor has no part"));
  EXPECT_THAT(llama(R"("rope_parameters":{"full_attention":{"rope_type":"default"}})"),
              HasSubstr("full_attention"));
  EXPECT_THAT(llama(R"("rope_scaling":{"rope_type":"llama3","factor":2.0})"),
              HasSubstr("low_freq_factor is missing"));
  EXPECT_THAT(llama(R"("rope_scaling":[1])"), HasSubstr("not an object"));
  EXPECT_THAT(llama(R"("rope_theta":1e4,"rope_parameters":{"rope_theta":2e4})"), HasSubstr("rope_theta"));
  EXPECT_THAT(llama(R"("rope_scaling":{"type":"a"},"rope_parameters":{"type":"b"})"),
              HasSubstr("different things"));
  EXPECT_THAT(llama(R"("attention_bias":true)"), HasSubstr("attention_bias is true and mlp_bias false"));
  EXPECT_THAT(llama(R"("hidden_act":"gelu")"), HasSubstr("hidden_act is gelu"));
  EXPECT_THAT(llama(R"("sliding_window":4096)"), HasSubstr("sliding_window is 4096"));
  EXPECT_THAT(llama(R"("attention_dropout":0.1)"), HasSubstr("attention_dropout is 0.1"));
  EXPECT_THAT(llama(R"("num_local_experts":8)"), HasSubstr("num_local_experts is 8"));
  EXPECT_THAT(llama(R"("logits_scaling":2.0)"), HasSubstr("logits_scaling"));
  EXPECT_THAT(llama(R"("final_logit_softcapping":30.0)"), HasSubstr("final_logit_softcapping"));
  EXPECT_THAT(llama(R"("auto_map":{"AutoModelForCausalLM":"x.Y"})"), HasSubstr("auto_map"));
  EXPECT_THAT(llama(R"("layer_types":["full_attention","sliding_attention"])"), HasSubstr("layer_types"));
  EXPECT_THAT(llama(R"("head_dim":5)"), HasSubstr("head_dim is 5"));
  EXPECT_THAT(llama(R"("num_key_value_heads":3)"), HasSubstr("num_key_value_heads, 3"));
  EXPECT_THAT(mistral(R"("attention_bias":true)"), HasSubstr("attention_bias is true"));
  EXPECT_THAT(refusal(R"({"model_type":"gemma2"})"), HasSubstr("model_type is gemma2"));
  EXPECT_THAT(refusal("{}"), HasSubstr("model_type is missing"));
}

TEST(HuggingFaceConfig, HostileTextsAreRefused) {
  EXPECT_THAT(refusal(""), HasSubstr("not JSON"));
  EXPECT_THAT(refusal("[]"), HasSubstr("no object"));
  EXPECT_THAT(refusal("7"), HasSubstr("no object"));
  EXPECT_THAT(refusal(std::string(1 << 18, '[')), HasSubstr("nested"));
  EXPECT_THAT(refusal(std::string("{}\0", 3)), HasSubstr("NUL"));
  EXPECT_THAT(refusal("{\"model_type\":\"\xff\"}"), HasSubstr("not JSON"));
  EXPECT_THAT(refusal(R"({"model_type":1})"), HasSubstr("model_type is 1, not a text"));
  EXPECT_THAT(refusal(with(R"("vocab_size":7)", small_llama)), HasSubstr("'vocab_size' comes twice"));
  const auto changed = [](const std::string& from, const std::string& to) {
    std::string text = std::string("{") + small_llama;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos);
    return text.replace(at, from.size(), to);
  };
  for (const char* value : {"0", "-1", "1.5", "\"61\"", "null", "[]", "{}", "true", "1e3", "99999999999",
                            "9223372036854775808", "18446744073709551615", "99999999999999999999999"}) {
    EXPECT_THAT(refusal(changed("\"vocab_size\":61", std::string("\"vocab_size\":") + value)),
                HasSubstr("vocab_size"))
        << value;
  }
  EXPECT_THAT(refusal(changed("\"num_hidden_layers\":2", "\"num_hidden_layers\":10001")), HasSubstr("10001"));
  EXPECT_THAT(refusal(changed("\"hidden_size\":24", "\"hidden_size\":25")), HasSubstr("hidden_size is 25"));
  EXPECT_THAT(refusal(with(R"("rms_norm_eps":-1)", small_llama)), HasSubstr("norm_epsilon"));
  EXPECT_THAT(refusal(with(R"("rms_norm_eps":"1")", small_llama)), HasSubstr("rms_norm_eps"));
  EXPECT_THAT(refusal(with(R"("rope_theta":0)", small_llama)), HasSubstr("rope_theta"));
  EXPECT_THAT(refusal(with(R"("eos_token_id":-1)", small_llama)), HasSubstr("eos_token_id"));
  EXPECT_THAT(refusal(with(R"("bos_token_id":{"a":1})", small_llama)), HasSubstr("bos_token_id"));
  EXPECT_THAT(refusal(with(R"("architectures":"LlamaForCausalLM2")", small_llama)),
              HasSubstr("architectures"));
}

TEST(HuggingFaceConfig, UnknownKeysAreNoted) {
  const auto config = parse(with(R"("flux_capacitor":{"charge":1.21})", small_llama));
  ASSERT_EQ(config.notes.size(), 1U);
  EXPECT_THAT(config.notes[0], HasSubstr(R"(flux_capacitor = {"charge":1.21})"));
}

TEST(HuggingFaceConfig, WrittenAndReadAgainIsTheSame) {
  std::vector<ModelConfig> models;
  ModelConfig gpt2 = family_defaults("gpt2");
  gpt2.width = 24;
  gpt2.heads = 4;
  gpt2.dropout = 0.1;
  models.push_back(gpt2);
  gpt2.feed_forward = 50;
  gpt2.tied_head = false;
  gpt2.norm_epsilon = 1e-6;
  models.push_back(gpt2);
  ModelConfig llama = family_defaults("llama");
  llama.key_value_heads = 3;
  llama.head_dim = 62;
  llama.feed_forward = 100;
  llama.rope_theta = 12345.678;
  llama.initial_deviation = 0.1;
  models.push_back(llama);
  llama.tied_head = llama.bias = true;
  llama.rope_factor = 32;
  llama.rope_original = 4000;
  models.push_back(llama);
  llama.bias = false;
  llama.window = 77;
  models.push_back(llama);
  const SpecialTokenIds tokens{{1}, {2, 3}};
  for (const ModelConfig& model : models) {
    const auto again = parse(format_hugging_face_config(model, DType::bf16, tokens));
    ModelConfig same = model;  // the sizes that are defaults come back as numbers
    same.key_value_heads = model.family == "llama" ? model.key_value_heads_or_default() : 0;
    same.head_dim = model.family == "llama" ? model.head_dim_or_default() : 0;
    EXPECT_EQ(again.model, same);
    EXPECT_EQ(again.dtype, DType::bf16);
    EXPECT_EQ(again.tokens, tokens);
    EXPECT_THAT(again.notes, IsEmpty());
  }
}

TEST(HuggingFaceConfig, ModelsWithoutSuchAFormAreRefusedByName) {
  const auto refused = [](const ModelConfig& model) -> std::string {
    try {
      hugging_face_type_of(model);
    } catch (const Error& error) {
      return error.message();
    }
    return "accepted";
  };
  ModelConfig model = family_defaults("gpt2");
  model.parallel_block = true;
  EXPECT_THAT(refused(model), HasSubstr("GPT-2 but for model.parallel_block"));
  model = family_defaults("gpt2");
  model.window = 5;
  EXPECT_THAT(refused(model), HasSubstr("model.window"));
  model = family_defaults("gpt2");
  model.head_dim = 10;
  EXPECT_THAT(refused(model), HasSubstr("model.head_dim"));
  model = family_defaults("gpt2");
  model.bias = false;
  EXPECT_THAT(refused(model), HasSubstr("model.bias = false"));
  model = family_defaults("llama");
  model.query_key_norm = true;
  EXPECT_THAT(refused(model), HasSubstr("model.query_key_norm"));
  model = family_defaults("llama");
  model.logit_soft_cap = 30;
  EXPECT_THAT(refused(model), HasSubstr("model.logit_soft_cap"));
  model = family_defaults("llama");
  model.window_pattern = {5, 0};
  EXPECT_THAT(refused(model), HasSubstr("model.window_pattern"));
  model.window_pattern = {5, 5};
  EXPECT_EQ(hugging_face_type_of(model), "mistral");
  model.bias = true;
  EXPECT_THAT(refused(model), HasSubstr("model.window together with model.bias"));
  // What counts is what is computed, not the family's name.
  ModelConfig renamed = family_defaults("llama");
  renamed.family = "gpt2";
  EXPECT_EQ(hugging_face_type_of(renamed), "llama");
}

}  // namespace
}  // namespace athanor
