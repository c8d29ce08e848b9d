// Counter-based random numbers: Philox4x32-10.
//
// A number is a pure function of (key, counter): no state, no order of calls, nothing to save in a
// checkpoint. The key says what the number is for (`RandomKey`: seed, purpose, logical name, step);
// the counter is a global coordinate, the index of an element in its whole tensor or of a token in
// the data set, never an offset in some buffer. So weights, data order and dropout are the same in
// every layout and for every thread count.
//
// Called by initialisation (model, train), dropout kernels, samplers, augmentations and tests.
// Thread safety: pure functions and values.
//
// Source: J. Salmon, M. Moraes, R. Dror, D. Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC'11. Multipliers, Weyl constants and test vectors are those of the paper's Random123 library.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace athanor {

// Four 32-bit random words from a 128-bit counter and a 64-bit key, ten rounds.
constexpr std::array<uint32_t, 4> philox4x32(std::array<uint32_t, 4> counter, std::array<uint32_t, 2> key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53} * counter[0];
    const uint64_t product1 = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0], static_cast<uint32_t>(product1),
               static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1], static_cast<uint32_t>(product0)};
    key[0] += 0x9E3779B9u;  // the golden ratio
    key[1] += 0xBB67AE85u;  // sqrt(3) - 1
  }
  return counter;
}

// Finaliser of splitmix64 (Steele, Lea, Flood, OOPSLA'14): a bijection of 64-bit words in which every
// input bit changes about half of the output bits.
constexpr uint64_t mix64(uint64_t word) {
  word = (word ^ (word >> 30)) * 0xBF58476D1CE4E5B9u;
  word = (word ^ (word >> 27)) * 0x94D049BB133111EBu;
  return word ^ (word >> 31);
}

// Hash of a string, the same on every machine and in every version: 64-bit FNV-1a, then `mix64`,
// because FNV alone leaves the high bits of short strings poorly mixed. Not for adversaries.
constexpr uint64_t stable_hash(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char character : text) {
    hash = (hash ^ static_cast<uint8_t>(character)) * 0x100000001B3u;
  }
  return mix64(hash);
}

// What a random number is for. Numbers of two purposes are independent of each other even with the
// same seed, name, step and index. The values are part of the promise that a seed means the same
// numbers in every version: never renumber, only add.
enum class RandomPurpose : uint32_t {
  initial_weights = 1,
  dropout = 2,
  data_order = 3,
  generation = 4,
  test = 5,
  data_split = 6,
};

// Key and upper counter half of a stream of random numbers: a function of seed, purpose, logical name
// (of a parameter, an operation, a data set) and step. Where numbers must be the same at every step
// (weights, data order) the step is 0. Make it once per tensor, then ask it once per element.
struct RandomKey {
  std::array<uint32_t, 2> key{};    // the Philox key: seed and purpose and name, mixed
  std::array<uint32_t, 2> upper{};  // the upper half of the counter: the step, exact

  constexpr RandomKey(uint64_t seed, RandomPurpose purpose, uint64_t name_hash, uint64_t step = 0) {
    const uint64_t seeded = mix64(seed + 0x9E3779B97F4A7C15u);
    const uint64_t mixed = mix64(mix64(seeded ^ static_cast<uint64_t>(purpose)) ^ name_hash);
    key = {static_cast<uint32_t>(mixed), static_cast<uint32_t>(mixed >> 32)};
    upper = {static_cast<uint32_t>(step), static_cast<uint32_t>(step >> 32)};
  }
  constexpr RandomKey(uint64_t seed, RandomPurpose purpose, std::string_view name, uint64_t step = 0)
      : RandomKey(seed, purpose, stable_hash(name), step) {}
};

// The four words of block `index` of the key's stream. Element e of a tensor that takes one word
// each is word e % 4 of block e / 4; see `random_word`.
constexpr std::array<uint32_t, 4> random_block(const RandomKey& key, uint64_t index) {
  return philox4x32(
      {static_cast<uint32_t>(index), static_cast<uint32_t>(index >> 32), key.upper[0], key.upper[1]},
      key.key);
}

// The 32-bit word of one element.
constexpr uint32_t random_word(const RandomKey& key, uint64_t element) {
  return random_block(key, element / 4)[element % 4];
}

// A word as a number in [0, 1), every multiple of 2^-24 equally likely. Exact in fp32.
constexpr float uniform_float(uint32_t word) {
  return static_cast<float>(word >> 8) * 0x1p-24f;
}

// Two words as a number in [0, 1), every multiple of 2^-53 equally likely. Exact in fp64.
constexpr double uniform_double(uint32_t low, uint32_t high) {
  return static_cast<double>(((uint64_t{high} << 32) | low) >> 11) * 0x1p-53;
}

// An integer in [0, bound), bound > 0, from two words: the high half of word * bound (D. Lemire, "Fast
// random integer generation in an interval", 2019, without the rejection). A value's probability is
// off by less than bound / 2^64 of itself, and no loop depends on the numbers drawn.
constexpr uint64_t uniform_below(uint32_t low, uint32_t high, uint64_t bound) {
  const uint64_t word = (uint64_t{high} << 32) | low;
  const uint64_t cross =
      (word >> 32) * (bound & 0xFFFFFFFFu) + (((word & 0xFFFFFFFFu) * (bound & 0xFFFFFFFFu)) >> 32);
  const uint64_t rest = (word & 0xFFFFFFFFu) * (bound >> 32) + (cross & 0xFFFFFFFFu);
  return (word >> 32) * (bound >> 32) + (cross >> 32) + (rest >> 32);
}

// Two independent standard normal numbers of one block, by Box and Muller (1958) in fp64 with 53 bits
// each. The largest magnitude is sqrt(2 ln 2^53) = 8.57. Uses std::log, std::cos and std::sin, so bits may
// differ between C libraries, never between threads or layouts.
std::array<double, 2> normal_pair(std::array<uint32_t, 4> block);

// The standard normal number of one element: half e % 2 of the pair of block e / 2.
double random_normal(const RandomKey& key, uint64_t element);

// Writes the numbers of elements [first, first + count) times `scale`: the same values as
// scale * random_normal, at half the cost.
void fill_normal(const RandomKey& key, uint64_t first, double scale, float* out, size_t count);
void fill_normal(const RandomKey& key, uint64_t first, double scale, double* out, size_t count);

}  // namespace athanor
