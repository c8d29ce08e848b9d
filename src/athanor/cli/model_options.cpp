#include "athanor/cli/model_options.h"

namespace athanor {
namespace {

void add_model_shape_rows(OptionTable& table, ModelConfig& model) {
  table.add("model.layers", model.layers, "Number of blocks.").at_least(1).at_most(10000);
  table.add("model.width", model.width, "Features of the residual stream.").at_least(1).at_most(1 << 18);
  table.add("model.heads", model.heads, "Query heads of attention.").at_least(1).at_most(1 << 16);
  table
      .add("model.key_value_heads", model.key_value_heads,
           "Key/value heads, each shared by the same number of query heads; 0: as many as heads.")
      .at_least(0)
      .at_most(1 << 16);
  table.add("model.head_dim", model.head_dim, "Features of a head; 0: model.width / model.heads.")
      .at_least(0)
      .at_most(1 << 16);
  table
      .add("model.feed_forward", model.feed_forward,
           "Features between the two products of the feed-forward layer; 0: 4 x model.width.")
      .at_least(0)
      .at_most(1 << 21);
  table.add("model.vocabulary", model.vocabulary, "Number of token ids.").at_least(1).at_most(1 << 26);
  table
      .add("model.maximum_positions", model.maximum_positions,
           "Rows of the table of learned positions, so the longest sequence.")
      .at_least(1)
      .at_most(1 << 24);
}

void add_model_kind_rows(OptionTable& table, ModelConfig& model) {
  table.add_choice("model.norm", model.norm,
                   {{"layer_norm", NormKind::layer_norm}, {"rms_norm", NormKind::rms_norm}},
                   "Normalisation before attention, feed-forward and head.");
  table.add("model.norm_epsilon", model.norm_epsilon, "Added to the variance in norms.")
      .at_least(0)
      .at_most(1);
  table.add_choice("model.positions", model.positions,
                   {{"learned", PositionKind::learned}, {"rotary", PositionKind::rotary}},
                   "A learned table added to the embedding, or rotation of queries and keys.");
  table.add("model.rope_theta", model.rope_theta, "Base of the rotary frequencies.").above(1).at_most(1e12);
  table
      .add("model.rope_factor", model.rope_factor,
           "Llama 3.1's scaling: how much low rotary frequencies are slowed down; 1: none.")
      .at_least(1)
      .at_most(1e6);
  table
      .add("model.rope_low", model.rope_low,
           "Llama 3.1's scaling: waves with fewer turns than this in model.rope_original are slowed down "
           "fully.")
      .above(0);
  table
      .add("model.rope_high", model.rope_high,
           "Llama 3.1's scaling: waves with more turns than this in model.rope_original stay.")
      .above(0);
  table
      .add("model.rope_original", model.rope_original,
           "Llama 3.1's scaling: sequence length before the extension.")
      .at_least(1);
  table.add_choice("model.feed_forward_kind", model.feed_forward_kind,
                   {{"gelu", FeedForwardKind::gelu}, {"swiglu", FeedForwardKind::swiglu}},
                   "Activation: GELU (tanh form), or SwiGLU with a gate beside the first product.");
  table.add("model.bias", model.bias, "Biases in products and layer norms.");
  table.add("model.tied_head", model.tied_head, "The head multiplies with the token embedding.");
  table.add("model.query_key_norm", model.query_key_norm, "Norms over each head's queries and keys.");
  table.add("model.parallel_block", model.parallel_block,
            "Attention and feed-forward side by side: y = x + attention(norm(x)) + feed_forward(norm(x)).");
  table
      .add("model.window", model.window,
           "Sliding-window attention: how many of the latest tokens a token sees, itself included; 0: all.")
      .at_least(0);
  table
      .add("model.window_pattern", model.window_pattern,
           "Windows of layers in turn, repeated over the layers; empty: model.window in every layer.")
      .at_least(0);
}

}  // namespace

void add_model_rows(OptionTable& table, RunOptions& run) {
  ModelConfig& model = run.model;
  table.describe_group("model",
                       "The model. A family sets the defaults, a base file of configs/models lies over "
                       "them, options given by hand over both.");
  table.add_choice("model.family", model.family, {{"gpt2", std::string("gpt2")}, {"llama", "llama"}},
                   "Family: sets the defaults of norm, positions, feed_forward_kind, bias and tied_head, and "
                   "the names of parameters in other formats.");
  table.set_leading_option("model.family", [&model] { model = family_defaults(model.family); });
  table.add("model.base", run.model_base,
            "Model file to begin with: NAME for configs/models/NAME.toml, or the path of a file.");
  add_model_shape_rows(table, model);
  add_model_kind_rows(table, model);
  table.set_base_option("model.base", "model");
  table
      .add("model.dropout", model.dropout,
           "Probability of dropping an element of embedding, attention weights and residual branches.")
      .at_least(0)
      .below(1);
  table
      .add("model.label_smoothing", model.label_smoothing,
           "Share of the label's probability spread over the vocabulary.")
      .at_least(0)
      .below(1);
  table.add("model.z_loss", model.z_loss, "Weight of the squared log of the softmax's sum in the loss.")
      .at_least(0)
      .at_most(1e6);
  table
      .add("model.logit_soft_cap", model.logit_soft_cap,
           "Logits pass through cap x tanh(logit / cap); 0: as they are.")
      .at_least(0)
      .at_most(1e6);
  table
      .add("model.initial_deviation", model.initial_deviation,
           "Standard deviation of the initial weights; projections into the residual stream are divided by "
           "sqrt(2 x layers).")
      .at_least(0)
      .at_most(100);
}

}  // namespace athanor
