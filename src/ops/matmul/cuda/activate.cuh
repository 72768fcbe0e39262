// Activations chosen when the kernel runs: all threads take the same branch, and one kernel serves all three.
#pragma once

#include "ops/cuda/gelu.cuh"

namespace warpwright::ops::matmul::cuda {

__device__ inline float activate(Activation activation, float x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gpu::gelu_tanh(x);
    case Activation::gelu_erf:
      return gpu::gelu_erf(x);
    default:
      return x;
  }
}

__device__ inline float activation_derivative(Activation activation, float x) {
  switch (activation) {
    case Activation::gelu_tanh:
      return gpu::gelu_tanh_derivative(x);
    case Activation::gelu_erf:
      return gpu::gelu_erf_derivative(x);
    default:
      return 1.0f;
  }
}

}  // namespace warpwright::ops::matmul::cuda
