// For the epilogues of both directions: the parameters, boxes in shared memory, and the curve of the gate.
#pragma once

#include "ops/cuda/hopper/tensor_copy.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/vector.cuh"
#include "ops/gate/cuda/curve.cuh"
#include "ops/matmul/cuda/hopper/parameters.cuh"
#include "ops/matmul/cuda/hopper/ring.cuh"

namespace warpwright::ops::gated_linear::cuda {

using matmul::cuda::kBoxBytes;
using matmul::cuda::kBoxRows;
using matmul::cuda::kGroupThreads;
using matmul::cuda::kRowBytes;
using matmul::cuda::kWarpRows;
using matmul::cuda::Piece;
using matmul::cuda::Place;
using matmul::cuda::Shared;

// A row of gate_up is [gate | up]. Each half has a map of its own, so that no box crosses from one to the
// other.
struct GatedParameters {
  matmul::cuda::Parameters product;  // extra: gate
  CUtensorMap up;
};

// The first of a warp's 16 rows in a box.
__device__ inline int first_row_of_warp() {
  return matmul::cuda::warp_of_threads() % 4 * kWarpRows;
}

// A group's boxes, which have 64 rows of kBytes. Each warp has 16 of the rows.
template <int kBytes>
struct Boxes {
  static constexpr int kBytesOfBox = kBoxRows * kBytes;

  std::byte* of_warp;        // part(0)
  std::uint32_t lane_place;  // place(0, 0)

  __device__ explicit Boxes(std::byte* buffers)
      : of_warp(hopper::kept_in_register(buffers) + first_row_of_warp() * kBytes) {
    constexpr unsigned kUnits = kBytes / 16;  // of a row
    const unsigned thread = threadIdx.x % kGroupThreads, matrix = thread % 32 / 8;
    const unsigned row = thread / 32 * 16 + matrix % 2 * 8 + thread % 8, first = row * kUnits;
    lane_place = gpu::shared_address(buffers) + ((first + matrix / 2) ^ first / 8 % kUnits) * 16;
  }

  // The warp's part of a box, for the copy engine.
  __device__ std::byte* part(int box) const { return of_warp + box * kBytesOfBox; }

  // The address in a box for two by two 8×8 matrices, from the j-th eight columns on (j is even). Each lane
  // names a row of one matrix.
  __device__ std::uint32_t place(int box, int j) const {
    return (lane_place + static_cast<std::uint32_t>(box * kBytesOfBox)) ^ static_cast<std::uint32_t>(j) * 16;
  }
};

__device__ inline void store_matrices(std::uint32_t address, const std::uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};\n" ::"r"(address), "r"(r[0]),
               "r"(r[1]), "r"(r[2]), "r"(r[3])
               : "memory");
}

// act(x) and act'(x) for results of 16 bits. act(x) has the bits of gate::act. silu' is σ + x·σ·(1 − σ).
template <GateActivation activation, class T>
__device__ gate::Curve curve_of_16_bits(float x) {
  if constexpr (activation == GateActivation::silu) {
    const float sigmoid = gpu::reciprocal(1.0f + expf(-x));
    float c;  // x clamped, so that 0 meets no infinity; NaN stays NaN
    asm("min.NaN.xorsign.abs.f32 %0, %1, %2;" : "=f"(c) : "f"(x), "f"(kSiluBound));
    return {x * sigmoid, fmaf(fmaf(-sigmoid, c, c), sigmoid, sigmoid)};
  } else {
    constexpr Activation kGelu =
        activation == GateActivation::gelu_tanh ? Activation::gelu_tanh : Activation::gelu_erf;
    return {gate::act<activation, T>(x), gpu::activation_derivative_in_epilogue<kGelu>(x)};
  }
}

}  // namespace warpwright::ops::gated_linear::cuda
