#include "athanor/model/config.h"

#include <cmath>

#include "athanor/base/error.h"

namespace athanor {

ModelConfig family_defaults(const std::string& family) {
  ModelConfig config;
  config.family = family;
  if (family == "gpt2") return config;
  if (family == "llama") {
    config.norm = NormKind::rms_norm;
    config.positions = PositionKind::rotary;
    config.feed_forward_kind = FeedForwardKind::swiglu;
    config.bias = false;
    config.tied_head = false;
    return config;
  }
  throw_user_error(fmt::format("model.family is \"{}\", which is no known family", family),
                   "the known families are gpt2 and llama");
}

namespace {

void demand_positive(const char* option, int64_t value) {
  if (value < 1) throw_user_error(fmt::format("model.{} is {}", option, value), "it must be at least 1");
}

void demand_probability(const char* option, double value) {
  if (!(value >= 0 && value < 1)) {
    throw_user_error(fmt::format("model.{} is {}", option, value), "it must be at least 0 and below 1");
  }
}

}  // namespace

void validate(const ModelConfig& config) {
  demand_positive("layers", config.layers);
  demand_positive("width", config.width);
  demand_positive("heads", config.heads);
  demand_positive("vocabulary", config.vocabulary);
  demand_positive("maximum_positions", config.maximum_positions);
  demand_positive("feed_forward", config.feed_forward_or_default());
  if (config.head_dim == 0 && config.width % config.heads != 0) {
    throw_user_error(
        fmt::format("model.width {} is not a multiple of model.heads {}", config.width, config.heads),
        "give model.head_dim, or heads that divide the width");
  }
  const int64_t key_value_heads = config.key_value_heads_or_default();
  demand_positive("key_value_heads", key_value_heads);
  if (config.heads % key_value_heads != 0) {
    throw_user_error(fmt::format("model.heads {} is not a multiple of model.key_value_heads {}", config.heads,
                                 key_value_heads),
                     "each key/value head serves the same number of query heads");
  }
  demand_positive("head_dim", config.head_dim_or_default());
  if (config.positions == PositionKind::rotary && config.head_dim_or_default() % 2 != 0) {
    throw_user_error(fmt::format("model.head_dim {} is odd", config.head_dim_or_default()),
                     "rotary positions turn pairs of features and need an even head dim");
  }
  demand_probability("dropout", config.dropout);
  demand_probability("label_smoothing", config.label_smoothing);
  if (config.window < 0)
    throw_user_error(fmt::format("model.window is {}", config.window), "0 means full attention");
  for (const int64_t window : config.window_pattern) {
    if (window < 0)
      throw_user_error(fmt::format("model.window_pattern holds {}", window), "0 means full attention");
  }
  if (!(config.z_loss >= 0))
    throw_user_error(fmt::format("model.z_loss is {}", config.z_loss), "it must be at least 0");
  if (!(config.logit_soft_cap >= 0)) {
    throw_user_error(fmt::format("model.logit_soft_cap is {}", config.logit_soft_cap), "0 means no cap");
  }
  if (!(config.norm_epsilon >= 0)) {
    throw_user_error(fmt::format("model.norm_epsilon is {}", config.norm_epsilon), "it must be at least 0");
  }
  if (!(config.rope_theta > 1)) {
    throw_user_error(fmt::format("model.rope_theta is {}", config.rope_theta),
                     "it must be above 1; 10000 is usual");
  }
  if (!(config.rope_factor >= 1) || !(config.rope_low > 0) || !(config.rope_high > config.rope_low) ||
      config.rope_original < 1) {
    throw_user_error(
        fmt::format("model.rope_factor {}, rope_low {}, rope_high {}, rope_original {} do not fit",
                    config.rope_factor, config.rope_low, config.rope_high, config.rope_original),
        "factor >= 1 and 0 < low < high; Llama 3.1 has 8, 1, 4 and 8192");
  }
  if (!(config.initial_deviation >= 0) || !std::isfinite(config.initial_deviation)) {
    throw_user_error(fmt::format("model.initial_deviation is {}", config.initial_deviation), "0.02 is usual");
  }
}

}  // namespace athanor
