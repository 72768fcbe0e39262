// The activations and their derivatives for the oracles, in fp64 throughout and in the order of the formulas
// (ops/activation.hpp). They share nothing with the kernels. 1 + erf(t) is computed as erfc(−t), which is
// equal and does not cancel.
#pragma once

#include <cmath>
#include <numbers>

#include "ops/activation.hpp"

namespace warpwright::ops::oracle {

inline constexpr double kCubic = 0.044715;
inline const double kSqrt2OverPi = std::sqrt(2 / std::numbers::pi);

inline double activate(Activation activation, double x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
    case Activation::gelu_erf:
      return 0.5 * x * std::erfc(-x / std::numbers::sqrt2);
    case Activation::relu:
      return x < 0 ? 0 : x;
    case Activation::tanh:
      return std::tanh(x);
    default:
      return x;
  }
}

inline double derivative(Activation activation, double x) {
  switch (activation) {
    case Activation::gelu_tanh: {
      const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
    }
    case Activation::gelu_erf: {
      const double bell = std::exp(-0.5 * x * x) / std::sqrt(2 * std::numbers::pi);
      return 0.5 * std::erfc(-x / std::numbers::sqrt2) + x * bell;
    }
    case Activation::relu:
      return x > 0 ? 1 : 0;
    case Activation::tanh:
      return 1 - std::tanh(x) * std::tanh(x);
    default:
      return 1;
  }
}

}  // namespace warpwright::ops::oracle
