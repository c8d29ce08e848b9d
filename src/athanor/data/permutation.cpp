#include "athanor/data/permutation.h"

#include <bit>

#include "athanor/base/error.h"

namespace athanor {

Permutation::Permutation(int64_t size, const RandomKey& key) : size_(size), key_(key) {
  ATHANOR_ASSERT(size >= 1 && size <= int64_t{1} << 62, "size {}", size);
  half_bits_ = (static_cast<int>(std::bit_width(static_cast<uint64_t>(size) - 1)) + 1) / 2;
}

uint64_t Permutation::encrypt(uint64_t value) const {
  // Four rounds are the least that hides structure in large domains; small halves need more.
  constexpr uint64_t rounds = 10;
  const uint64_t mask = (uint64_t{1} << half_bits_) - 1;
  uint64_t left = value >> half_bits_, right = value & mask;
  for (uint64_t round = 0; round < rounds; ++round) {
    // A half has at most 31 bits, so round and half share one 64-bit counter.
    const uint64_t mixed = left ^ (random_block(key_, (round << 32) | right)[0] & mask);
    left = right;
    right = mixed;
  }
  return (left << half_bits_) | right;
}

int64_t Permutation::operator()(int64_t index) const {
  ATHANOR_ASSERT(index >= 0 && index < size_, "entry {} of {}", index, size_);
  auto value = static_cast<uint64_t>(index);
  do value = encrypt(value);
  while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace athanor
