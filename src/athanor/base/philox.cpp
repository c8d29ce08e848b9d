#include "athanor/base/philox.h"

#include <cmath>
#include <numbers>

namespace athanor {
namespace {

template <typename T>
void fill(const RandomKey& key, uint64_t first, double scale, T* out, size_t count) {
  std::array<double, 2> pair{};
  uint64_t held = ~uint64_t{0};
  for (size_t i = 0; i < count; ++i) {
    const uint64_t element = first + i;
    if (element / 2 != held) {
      held = element / 2;
      pair = normal_pair(random_block(key, held));
    }
    out[i] = static_cast<T>(scale * pair[element % 2]);
  }
}

}  // namespace

std::array<double, 2> normal_pair(std::array<uint32_t, 4> block) {
  // 1 - u lies in (0, 1], so the logarithm is finite.
  const double radius = std::sqrt(-2.0 * std::log(1.0 - uniform_double(block[0], block[1])));
  const double angle = 2.0 * std::numbers::pi * uniform_double(block[2], block[3]);
  return {radius * std::cos(angle), radius * std::sin(angle)};
}

double random_normal(const RandomKey& key, uint64_t element) {
  return normal_pair(random_block(key, element / 2))[element % 2];
}

void fill_normal(const RandomKey& key, uint64_t first, double scale, float* out, size_t count) {
  fill(key, first, scale, out, count);
}

void fill_normal(const RandomKey& key, uint64_t first, double scale, double* out, size_t count) {
  fill(key, first, scale, out, count);
}

}  // namespace athanor
