// Which random word decides about which element: the counter layout of dropout and of attention dropout.
//
// Used by every backend's kernels, so that all of them drop the same elements. A word is a pure function of
// (seed, logical name of the operation, step) and of the element's global coordinates: sample id, index
// within the sample, feature; or sample id, head, query index, key index. Never of a buffer offset, so
// layout, micro-batch size, chunking and recomputation change nothing. Thread safety: pure functions.
//
// Counter of the four words of a Philox block, for dropout and for attention dropout:
//   word 0: feature / 4             word 0: key index / 4
//   word 1: index within sample     word 1: query index within sample
//   words 2, 3: sample id           words 2, 3: sample id
// and element e of the last coordinate takes word e % 4 of block e / 4. Everything else is in the key: for
// attention dropout the head too. Indices are those of the `indices` operand (the same as positions only
// where a sample holds one document).
#pragma once

#include <array>
#include <cstdint>

#include "athanor/base/philox.h"

namespace athanor {

// The Philox key of one operation at one step. KernelArguments::name_hash, StepInputs::seed and ::step.
struct DropoutKey {
  std::array<uint32_t, 2> key{};
};

constexpr DropoutKey dropout_key(uint64_t seed, uint64_t name_hash, int64_t step) {
  // The counter is full, so the step goes into the key as well.
  const uint64_t name_and_step = mix64(name_hash ^ mix64(static_cast<uint64_t>(step) + 0x9E3779B97F4A7C15u));
  return {RandomKey(seed, RandomPurpose::dropout, name_and_step).key};
}

// The key of one head of attention dropout; `head` is the global number of the query head.
constexpr DropoutKey head_key(const DropoutKey& key, int64_t head) {
  const uint64_t mixed =
      mix64((uint64_t{key.key[1]} << 32 | key.key[0]) ^ mix64(static_cast<uint64_t>(head) + 1));
  return {{static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)}};
}

// Words of the four elements 4 * block .. 4 * block + 3 of the last coordinate: features of token (sample,
// index), or key indices seen from query (sample, index) with a head's key.
constexpr std::array<uint32_t, 4> dropout_words(const DropoutKey& key, int64_t sample, int32_t index,
                                                int64_t block) {
  const auto wide = static_cast<uint64_t>(sample);
  return philox4x32({static_cast<uint32_t>(block), static_cast<uint32_t>(index), static_cast<uint32_t>(wide),
                     static_cast<uint32_t>(wide >> 32)},
                    key.key);
}

constexpr uint32_t dropout_word(const DropoutKey& key, int64_t sample, int32_t index, int64_t element) {
  return dropout_words(key, sample, index, element / 4)[static_cast<size_t>(element % 4)];
}

// An element is kept when its word is at least this: probability to the nearest 2^-32, 0 keeps all.
constexpr uint32_t dropout_threshold(double probability) {
  const double scaled = probability * 0x1p32 + 0.5;
  return scaled >= 0x1p32 ? 0xFFFFFFFFu : static_cast<uint32_t>(scaled);
}

// What kept elements are multiplied by. Probability in [0, 1).
constexpr double dropout_scale(double probability) {
  return 1.0 / (1.0 - probability);
}

}  // namespace athanor
