// The activation of a gate, and its derivative. gate/cpu/elements.inl explains silu's: nothing overflows, 0
// meets no infinity, and NaN stays NaN.
#pragma once

#include "ops/cuda/gelu.cuh"
#include "ops/gate/gate.hpp"

namespace warpwright::ops::gate {

// act(x) of a result that is stored as T.
template <GateActivation activation, class T>
__device__ float act(float x) {
  if constexpr (activation == GateActivation::gelu_tanh) {
    return gpu::activate_stored_as<Activation::gelu_tanh, T>(x);
  } else if constexpr (activation == GateActivation::gelu_erf) {
    return gpu::activate_stored_as<Activation::gelu_erf, T>(x);
  } else {
    return x * gpu::reciprocal(1.0f + expf(-x));
  }
}

struct Curve {
  float value, slope;  // act(x) and act'(x)
};

template <GateActivation activation>
__device__ Curve curve(float x) {
  if constexpr (activation == GateActivation::gelu_tanh)
    return {gpu::gelu_tanh(x), gpu::gelu_tanh_derivative(x)};
  if constexpr (activation == GateActivation::gelu_erf)
    return {gpu::gelu_erf(x), gpu::gelu_erf_derivative(x)};
  const float c = x > kSiluBound ? kSiluBound : x < -kSiluBound ? -kSiluBound : x;
  const float e = expf(-fabsf(c));
  const float large = gpu::reciprocal(1.0f + e), small = e * large;
  const float sigmoid = x < 0 ? small : large;
  return {x * sigmoid, fmaf(c, large * small, sigmoid)};
}

// The row of element i of (N, F). Division of 32 bits takes a fraction of the instructions.
__device__ inline std::int64_t row_of(std::int64_t i, std::int64_t columns) {
  if (((i | columns) >> 32) == 0) return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(columns);
  return i / columns;
}

}  // namespace warpwright::ops::gate
