// gelu(x) and gelu'(x) of a vector of floats, and the other activations (formulas: ops/activation.hpp). Used
// by ops/gelu and by matmul's epilogues.
//
// Both forms of GELU avoid the sums 1 + tanh and 1 + erf, which cancel in the left tail. There the relative
// precision is limited only by e^-u of a rounded u: the error is a few ulp for |x| < 3. Beyond |x| = 14,
// gelu(x) is x or 0 in fp32. NaN stays NaN.
#pragma once

#include "ops/activation.hpp"
#include "ops/cpu/simd.hpp"
#include "ops/gelu_constants.hpp"

namespace warpwright::ops::simd {
namespace {

inline vec clamp(vec x, float limit) {  // to [−limit, limit]; NaN stays NaN
  return max(set1(-limit), min(set1(limit), x));
}

inline vec gelu_tanh(vec x) {
  const vec square = x * x;
  const vec minus_z = x * fma(square, set1(-kSqrt8OverPi * kCubic), set1(-kSqrt8OverPi));
  return x / (set1(1.0f) + exp(minus_z));
}

// gelu'(x) = σ(z) + x·σ(z)·σ(−z)·z'. With e = e^−|z|, the smaller of σ(z) and σ(−z) is e / (1 + e). This
// neither cancels nor overflows.
inline vec gelu_tanh_derivative(vec x) {
  const vec c = clamp(x, 14.0f);
  const vec square = c * c;
  const vec z = c * fma(square, set1(kSqrt8OverPi * kCubic), set1(kSqrt8OverPi));
  const vec slope = fma(square, set1(3 * kSqrt8OverPi * kCubic), set1(kSqrt8OverPi));
  const vec e = exp(zero() - abs(z));
  const vec large = set1(1.0f) / (set1(1.0f) + e), small = e * large;
  return fma(c * slope, large * small, select_less(z, zero(), small, large));
}

struct Normal {
  vec distribution;  // Φ(x), the standard normal distribution
  vec bell;          // e^(−x²/2) = √(2π) · φ(x)
};

// ops/gelu_constants.hpp explains the polynomial.
inline Normal normal(vec x) {
  const vec magnitude = abs(x);
  const vec t = set1(3.0f) / (set1(3.0f) + magnitude);
  vec q = set1(kTail8);
  q = fma(q, t, set1(kTail7));
  q = fma(q, t, set1(kTail6));
  q = fma(q, t, set1(kTail5));
  q = fma(q, t, set1(kTail4));
  q = fma(q, t, set1(kTail3));
  q = fma(q, t, set1(kTail2));
  q = fma(q, t, set1(kTail1));
  q = fma(q, t, set1(kTail0));
  const vec bell = exp(magnitude * magnitude * set1(-0.5f));
  const vec tail = bell * (q * t);
  return {select_less(x, zero(), tail, set1(1.0f) - tail), bell};
}

inline vec gelu_erf(vec x) {
  return x * normal(x).distribution;
}

// gelu'(x) = Φ(x) + x·φ(x)
inline vec gelu_erf_derivative(vec x) {
  const vec c = clamp(x, 14.0f);
  const Normal n = normal(c);
  return fma(c * set1(kInverseSqrt2Pi), n.bell, n.distribution);
}

// max returns its second operand, x, if one operand is NaN. NaN therefore stays NaN.
inline vec relu(vec x) {
  return max(zero(), x);
}
inline vec relu_derivative(vec x) {
  return select_less(zero(), x, set1(1.0f), zero());
}

// tanh(|x|) = (1 − e) / (1 + e) with e = e^−2|x|. This cancels for |x| < 1/4, so the Taylor series up to x⁹
// replaces it there. The series is accurate to 2⁻²⁶.
inline vec tanh(vec x) {
  const vec magnitude = abs(x);
  const vec e = exp(magnitude * set1(-2.0f));
  const vec large = (set1(1.0f) - e) / (set1(1.0f) + e);
  const vec square = x * x;
  vec series = set1(62.0f / 2835.0f);
  series = fma(series, square, set1(-17.0f / 315.0f));
  series = fma(series, square, set1(2.0f / 15.0f));
  series = fma(series, square, set1(-1.0f / 3.0f));
  series = fma(series * square, x, x);
  const vec signed_large = select_less(x, zero(), zero() - large, large);
  return select_less(magnitude, set1(0.25f), series, signed_large);
}
inline vec tanh_derivative(vec x) {
  const vec t = tanh(x);
  return fnma(t, t, set1(1.0f));
}

template <Activation activation>
inline vec activate(vec x) {
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (activation == Activation::gelu_erf) return gelu_erf(x);
  if constexpr (activation == Activation::relu) return relu(x);
  if constexpr (activation == Activation::tanh) return tanh(x);
  return x;
}

template <Activation activation>
inline vec activation_derivative(vec x) {
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh_derivative(x);
  if constexpr (activation == Activation::gelu_erf) return gelu_erf_derivative(x);
  if constexpr (activation == Activation::relu) return relu_derivative(x);
  if constexpr (activation == Activation::tanh) return tanh_derivative(x);
  return set1(1.0f);
}

inline vec activate(Activation activation, vec x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gelu_tanh(x);
    case Activation::gelu_erf:
      return gelu_erf(x);
    case Activation::relu:
      return relu(x);
    case Activation::tanh:
      return tanh(x);
    default:
      return x;
  }
}

}  // namespace
}  // namespace warpwright::ops::simd
