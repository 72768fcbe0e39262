// The activation of a gate, and its derivative. The forms are those of gate/cpu/elements.inl, which explains
// them: nothing overflows, 0 meets no infinity, and NaN stays NaN.
#pragma once

#include <type_traits>

#include "ops/cuda/gelu.cuh"
#include "ops/gate/gate.hpp"

namespace warpwright::ops::gate {

// act(x) of a result that is stored as T.
template <GateActivation activation, class T>
__device__ float act(float x) {
  if constexpr (activation == GateActivation::gelu_tanh) {
    return gpu::activate_for<Activation::gelu_tanh, T>(x);
  } else if constexpr (activation == GateActivation::gelu_erf) {
    return gpu::activate_for<Activation::gelu_erf, T>(x);
  } else {
    return x * gpu::reciprocal(1.0f + expf(-x));
  }
}

struct Curve {
  float value, slope;  // act(x) and act'(x)
};

template <GateActivation activation>
__device__ Curve curve(float x) {
  if constexpr (activation == GateActivation::gelu_erf) {
    const gpu::Normal n = gpu::normal(x);
    return {x * n.distribution, fmaf(gpu::clamp_for_gelu(x) * 0.3989422804014327f, n.bell, n.distribution)};
  } else {
    float z, c_slope;  // c_slope = c·z'(c), where c is x, bounded
    if constexpr (activation == GateActivation::gelu_tanh) {
      const float c = gpu::clamp_for_gelu(x), square = c * c;
      z = c * fmaf(square, gpu::kSqrt8OverPi * gpu::kCubic, gpu::kSqrt8OverPi);
      c_slope = c * fmaf(square, 3 * gpu::kSqrt8OverPi * gpu::kCubic, gpu::kSqrt8OverPi);
    } else {
      z = x > 110.0f ? 110.0f : x < -110.0f ? -110.0f : x;  // e^−110 is 0 in fp32
      c_slope = z;
    }
    const float e = expf(-fabsf(z));
    const float large = gpu::reciprocal(1.0f + e), small = e * large;
    const float sigmoid = z < 0 ? small : large;
    return {x * sigmoid, fmaf(c_slope, large * small, sigmoid)};
  }
}

// Calls f(tag), where decltype(tag)::value is the activation.
template <class F>
void visit_activation(GateActivation activation, F&& f) {
  switch (activation) {
    case GateActivation::silu:
      return f(std::integral_constant<GateActivation, GateActivation::silu>{});
    case GateActivation::gelu_tanh:
      return f(std::integral_constant<GateActivation, GateActivation::gelu_tanh>{});
    case GateActivation::gelu_erf:
      return f(std::integral_constant<GateActivation, GateActivation::gelu_erf>{});
  }
}

// The row of element i of (N, F). Division of 32 bits takes a fraction of the instructions.
__device__ inline std::int64_t row_of(std::int64_t i, std::int64_t columns) {
  if (((i | columns) >> 32) == 0) return static_cast<std::uint32_t>(i) / static_cast<std::uint32_t>(columns);
  return i / columns;
}

}  // namespace warpwright::ops::gate
