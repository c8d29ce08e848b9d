// The activation functions and their derivatives, in double.
//
// Used by the elementwise and the matrix product reference kernels. Thread safety: pure functions.
#pragma once

#include <cmath>
#include <numbers>

#include "athanor/ir/operation.h"

namespace athanor::reference {

// GELU with the tanh approximation (Hendrycks and Gimpel 2016): x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715
// x^3))).
inline double gelu(double x) {
  const double inner = std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x);
  return 0.5 * x * (1 + std::tanh(inner));
}

inline double gelu_derivative(double x) {
  const double root = std::sqrt(2 / std::numbers::pi);
  const double tanh = std::tanh(root * (x + 0.044715 * x * x * x));
  return 0.5 * (1 + tanh) + 0.5 * x * (1 - tanh * tanh) * root * (1 + 3 * 0.044715 * x * x);
}

inline double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}

inline double silu(double x) {
  return x * sigmoid(x);
}

inline double silu_derivative(double x) {
  const double s = sigmoid(x);
  return s * (1 + x * (1 - s));
}

inline double activate(Activation activation, double x) {
  return activation == Activation::gelu ? gelu(x) : x;
}

}  // namespace athanor::reference
