// Instructions for the tiles, in addition to those of ops/cuda/mma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/mma.cuh"

namespace warpwright::ops::attention::cuda {

inline constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

using gpu::commit_copies;
using gpu::copy_async;
using gpu::load_matrices;
using gpu::load_matrices_transposed;
using gpu::multiply;
using gpu::pack;
using gpu::shared_address;
using gpu::to_tf32;

__device__ inline void wait_for_copies() {
  gpu::wait_for_groups<0>();
}

// 2^x from the special function unit. −inf gives 0, and NaN stays NaN.
__device__ inline float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;\n" : "=f"(y) : "f"(x));
  return y;
}

// The opposite of pack().
__device__ inline float2 unpack(std::uint32_t two, __nv_bfloat16) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xffff0000u)};
}
__device__ inline float2 unpack(std::uint32_t two, __half) {
  return __half22float2(*reinterpret_cast<const __half2*>(&two));
}

}  // namespace warpwright::ops::attention::cuda
