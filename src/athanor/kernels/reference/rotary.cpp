// Rotary position embedding (Su et al. 2021) in half-rotation form, with Llama 3.1's frequency scaling.
#include <cmath>
#include <numbers>

#include "athanor/kernels/reference/access.h"

namespace athanor::reference {

namespace {

// Radians per position of pair `i` in heads of width `width`. With rope_factor != 1 wavelengths longer than
// original / low are stretched by the factor, those shorter than original / high stay, and those between
// are blended.
double frequency(const Attributes& attributes, int64_t i, int64_t width) {
  const double plain = std::pow(attributes.theta, -2.0 * static_cast<double>(i) / static_cast<double>(width));
  if (attributes.rope_factor == 1) return plain;
  const double wavelength = 2 * std::numbers::pi / plain;
  const auto original = static_cast<double>(attributes.rope_original);
  if (wavelength < original / attributes.rope_high) return plain;
  if (wavelength > original / attributes.rope_low) return plain / attributes.rope_factor;
  const double smooth =
      (original / wavelength - attributes.rope_low) / (attributes.rope_high - attributes.rope_low);
  return (1 - smooth) * plain / attributes.rope_factor + smooth * plain;
}

// Elements i and i + E/2 turn; of an odd E the last one stays.
void rotary(const KernelArguments& a, const KernelContext&) {
  const TensorView &x = a.inputs[0], &positions = a.inputs[1], &y = a.outputs[0];
  const int64_t heads = x.shape[2], width = x.shape[3], half = width / 2;
  for (int64_t i = 0; i < half; ++i) {
    const double turn = frequency(*a.attributes, i, width) * (a.attributes->inverse ? -1 : 1);
    for (int64_t token = 0; token < x.shape.tokens(); ++token) {
      const double angle =
          static_cast<double>(load_integer(positions, token_offset(positions, token))) * turn;
      const double cosine = std::cos(angle), sine = std::sin(angle);
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t element = head * width + i;
        const double first = load(x, token_offset(x, token) + element);
        const double second = load(x, token_offset(x, token) + element + half);
        store(y, token_offset(y, token) + element, first * cosine - second * sine);
        store(y, token_offset(y, token) + element + half, second * cosine + first * sine);
      }
    }
  }
  for (int64_t token = 0; width % 2 != 0 && token < x.shape.tokens(); ++token) {
    for (int64_t head = 0; head < heads; ++head) {
      const int64_t element = head * width + width - 1;
      store(y, token_offset(y, token) + element, load(x, token_offset(x, token) + element));
    }
  }
}

}  // namespace

void add_rotary(KernelTable& table) {
  set_all(table, OperationKind::rotary, {.run = rotary});
}

}  // namespace athanor::reference
