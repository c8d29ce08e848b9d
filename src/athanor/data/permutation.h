// A random order of [0, size) without an array: entry i is computed on its own, in any order.
//
// Called by the sampler. Thread safety: a value; calls are pure.
//
// Source: a Feistel network over the smallest domain 4^k >= size, with Philox as its round function, and
// cycle walking into [0, size) (J. Black, P. Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002).
// The domain is below 4 * size, so an entry takes fewer than 4 walks on average.
#pragma once

#include <cstdint>

#include "athanor/base/philox.h"

namespace athanor {

class Permutation {
 public:
  // `size` >= 1, up to 2^62. The key chooses one of the orders.
  Permutation(int64_t size, const RandomKey& key);
  // `index` in [0, size) to its entry in [0, size); a bijection.
  int64_t operator()(int64_t index) const;

 private:
  uint64_t encrypt(uint64_t value) const;

  int64_t size_;
  RandomKey key_;
  int half_bits_ = 0;
};

}  // namespace athanor
