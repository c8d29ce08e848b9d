// What a model is: the options that define its graph and its initial weights.
//
// Filled from `model.*` options by cli, read by model families and compile. Thread safety: values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace athanor {

enum class NormKind : uint8_t { layer_norm, rms_norm };
enum class PositionKind : uint8_t { learned, rotary };
enum class FeedForwardKind : uint8_t { gelu, swiglu };

struct ModelConfig {
  std::string family = "gpt2";  // "gpt2" or "llama": names in other formats, and the defaults below
  int64_t layers = 12, width = 768, heads = 12;
  int64_t key_value_heads = 0;  // 0: as many as heads
  int64_t head_dim = 0;         // 0: width / heads
  int64_t feed_forward = 0;     // 0: 4 x width
  int64_t vocabulary = 50257;
  int64_t maximum_positions = 1024;
  NormKind norm = NormKind::layer_norm;
  double norm_epsilon = 1e-5;
  PositionKind positions = PositionKind::learned;
  double rope_theta = 10000, rope_factor = 1, rope_low = 1,
         rope_high = 4;  // Llama 3.1 scaling; factor 1: none
  int64_t rope_original = 8192;
  FeedForwardKind feed_forward_kind = FeedForwardKind::gelu;
  bool bias = true;
  bool tied_head = true;
  bool query_key_norm = false;
  bool parallel_block = false;  // y = x + attention(norm(x)) + mlp(norm(x))
  // Sliding window: 0 is full attention. With a pattern, layer l uses window_pattern[l % size].
  int64_t window = 0;
  std::vector<int64_t> window_pattern;
  double dropout = 0;  // embedding, attention weights, residual branches
  double label_smoothing = 0, z_loss = 0, logit_soft_cap = 0;
  // Initial weights: normal(0, initial_deviation); projections into the residual stream divided by
  // sqrt(2 layers); norms 1; biases 0.
  double initial_deviation = 0.02;

  int64_t key_value_heads_or_default() const { return key_value_heads > 0 ? key_value_heads : heads; }
  int64_t head_dim_or_default() const { return head_dim > 0 ? head_dim : width / heads; }
  int64_t feed_forward_or_default() const { return feed_forward > 0 ? feed_forward : 4 * width; }
  int64_t window_of(int64_t layer) const {
    return window_pattern.empty() ? window
                                  : window_pattern[static_cast<size_t>(layer) % window_pattern.size()];
  }
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;
};

// The family's own choices where they differ from GPT-2's (cli applies them before the user's options).
// Unknown family: user error with the known ones.
ModelConfig family_defaults(const std::string& family);

// Refuses what cannot be built (user error naming the option): sizes below 1, heads that key/value heads do
// not divide, an odd head dim with rotary positions, a probability outside [0, 1), ...
void validate(const ModelConfig& config);

}  // namespace athanor
