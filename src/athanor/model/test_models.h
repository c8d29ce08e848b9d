// A model for the tests of layouts. Called by tests of several rooms. Thread safety: pure function.
#pragma once

#include <cstdint>
#include <string>

#include "athanor/model/config.h"

namespace athanor {

// Tiny, with sizes that nothing divides: width 7, 10 features, a vocabulary of 23. Two key/value heads serve
// two query heads each.
inline ModelConfig odd_model(const std::string& family, int64_t layers, int64_t positions) {
  ModelConfig config = family_defaults(family);
  config.layers = layers;
  config.width = 7;
  config.heads = 4;
  config.key_value_heads = 2;
  config.head_dim = 4;
  config.feed_forward = 10;
  config.vocabulary = 23;
  config.maximum_positions = positions;
  return config;
}

}  // namespace athanor
