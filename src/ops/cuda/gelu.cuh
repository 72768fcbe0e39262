// gelu(x) and gelu'(x) of a float, and the other activations (formulas: ops/activation.hpp). Used by ops/gelu
// and by matmul's epilogues. The forms are those of ops/cpu/gelu.hpp, which explains them: the left tail does
// not cancel, nothing overflows, and NaN stays NaN. Each takes one exponential and one reciprocal, both
// within two ulp.
#pragma once

#include "ops/activation.hpp"
#include "ops/gelu_constants.hpp"

namespace warpwright::ops::gpu {

// Clamps x to [−14, 14], since gelu'(−14) is 0 and gelu'(14) is 1 in fp32. NaN stays NaN.
__device__ inline float clamp_for_gelu(float x) {
  return x > 14.0f ? 14.0f : x < -14.0f ? -14.0f : x;
}

// 1/x within an ulp for x ≥ 1, infinity included. This is one instruction; __fdividef also handles subnormal
// numbers.
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// x · σ(z) with z = √(8/π)·(x + 0.044715·x³)
__device__ inline float gelu_tanh(float x) {
  const float minus_z = x * fmaf(x * x, -kSqrt8OverPi * kCubic, -kSqrt8OverPi);
  return x * reciprocal(1.0f + expf(minus_z));
}

// σ(z) + x·σ(z)·σ(−z)·z'
__device__ inline float gelu_tanh_derivative(float x) {
  const float c = clamp_for_gelu(x), square = c * c;
  const float z = c * fmaf(square, kSqrt8OverPi * kCubic, kSqrt8OverPi);
  const float slope = fmaf(square, 3 * kSqrt8OverPi * kCubic, kSqrt8OverPi);
  const float e = expf(-fabsf(z));
  const float large = reciprocal(1.0f + e), small = e * large;
  return fmaf(c * slope, large * small, z < 0 ? small : large);
}

struct Normal {
  float distribution;  // Φ(x), the standard normal distribution
  float bell;          // e^(−x²/2) = √(2π) · φ(x)
};

// ops/gelu_constants.hpp explains the polynomial.
__device__ inline Normal normal(float x) {
  const float magnitude = fabsf(x);
  const float t = 3.0f * reciprocal(3.0f + magnitude);
  float q = kTail8;
  q = fmaf(q, t, kTail7);
  q = fmaf(q, t, kTail6);
  q = fmaf(q, t, kTail5);
  q = fmaf(q, t, kTail4);
  q = fmaf(q, t, kTail3);
  q = fmaf(q, t, kTail2);
  q = fmaf(q, t, kTail1);
  q = fmaf(q, t, kTail0);
  const float bell = expf(magnitude * magnitude * -0.5f);
  const float tail = bell * (q * t);
  return {x < 0 ? tail : 1.0f - tail, bell};
}

__device__ inline float gelu_erf(float x) {
  return x * normal(x).distribution;
}

// 2^x from the special function unit, for results of 16 bits: one instruction instead of eight. The relative
// error is 2^-22 plus 2^-24 for every unit of |x|. A result below 2^-126 is 0.
__device__ inline float exp2_16bit(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// gelu_erf for results that are stored in 16 bits, in half the instructions: Φ(x) = 1/(1 + 2^(−x·q(x²))),
// where x·q(x²) is the logarithm to base 2 of Φ(x)/Φ(−x).
//
// Accuracy: over normal deviates, the root mean square error is 3.7·10^-5 of the results' root mean square;
// rounding to fp16 costs 2.1·10^-4. Below x = −3 the relative error grows from 2·10^-4 to 10^-3. It is
// 3·10^-7 at most in absolute terms, as much as 1 + erf(x/√2) in fp32 loses there.
//
// The coefficients minimize the largest error of Φ(−|x|) in units of max(2·10^-4·Φ, 6·10^-8) for |x| ≤ 6.5. q
// is positive everywhere.
__device__ inline float gelu_erf_16bit(float x) {
  const float square = x * x;
  float q = 1.19924643e-6f;
  q = fmaf(q, square, -3.33050704e-5f);
  q = fmaf(q, square, -8.35483706e-4f);
  q = fmaf(q, square, 0.106704678f);
  q = fmaf(q, square, 2.30080132f);
  return x * reciprocal(1.0f + exp2_16bit(-x * q));
}

// Φ(x) + x·φ(x)
__device__ inline float gelu_erf_derivative(float x) {
  const float c = clamp_for_gelu(x);
  const Normal n = normal(c);
  return fmaf(c * kInverseSqrt2Pi, n.bell, n.distribution);
}

// NaN stays NaN.
__device__ inline float relu(float x) {
  return x < 0 ? 0.0f : x;
}
__device__ inline float tanh_derivative(float x) {
  const float t = tanhf(x);
  return fmaf(-t, t, 1.0f);
}

template <Activation activation>
__device__ float activate(float x) {
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh(x);
  if constexpr (activation == Activation::gelu_erf) return gelu_erf(x);
  if constexpr (activation == Activation::relu) return relu(x);
  if constexpr (activation == Activation::tanh) return tanhf(x);
  return x;
}

// The activation of a result that is stored as T, for kernels that memory bounds. gelu_erf's exponential and
// polynomial together would take longer than memory does, so results of 16 bits take the short form.
// gelu_tanh has no need of it.
template <Activation activation, class T>
__device__ float activate_stored_as(float x) {
  if constexpr (activation == Activation::gelu_erf && sizeof(T) == 2) return gelu_erf_16bit(x);
  return activate<activation>(x);
}

template <Activation activation>
__device__ float activation_derivative(float x) {
  if constexpr (activation == Activation::gelu_tanh) return gelu_tanh_derivative(x);
  if constexpr (activation == Activation::gelu_erf) return gelu_erf_derivative(x);
  if constexpr (activation == Activation::relu) return x > 0 ? 1.0f : 0.0f;
  if constexpr (activation == Activation::tanh) return tanh_derivative(x);
  return 1.0f;
}

// The activation of a result of 16 bits in a matrix product's epilogue, which has no other warps to hide its
// instructions. Both forms of GELU are short there, so gelu_tanh's bits differ from activate_stored_as().
template <Activation activation>
__device__ float activate_in_epilogue(float x) {
  if constexpr (activation == Activation::gelu_tanh) {
    constexpr float kScale = -kSqrt8OverPi * 1.4426950408889634f;
    return x * reciprocal(1.0f + exp2_16bit(x * fmaf(x * x, kScale * kCubic, kScale)));
  } else if constexpr (activation == Activation::gelu_erf) {
    return gelu_erf_16bit(x);
  } else {
    return activate<activation>(x);
  }
}

// Its derivative, in two thirds of activation_derivative's instructions. NaN stays NaN.
template <Activation activation>
__device__ float activation_derivative_in_epilogue(float x) {
  if constexpr (activation == Activation::gelu_tanh) {
    constexpr float kScale = kSqrt8OverPi * 1.4426950408889634f;
    float c;  // x clamped to [−14, 14], as in clamp_for_gelu
    asm("min.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(c) : "f"(x), "f"(14.0f));
    const float square = c * c;
    const float e = exp2_16bit(c * fmaf(square, -kScale * kCubic, -kScale));
    const float sigmoid = reciprocal(1.0f + e);
    const float slope = c * fmaf(square, 3 * kSqrt8OverPi * kCubic, kSqrt8OverPi);
    return fmaf(fmaf(-sigmoid, slope, slope), sigmoid, sigmoid);
  } else {
    return activation_derivative<activation>(x);
  }
}

}  // namespace warpwright::ops::gpu
