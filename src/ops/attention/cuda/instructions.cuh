// Instructions for the tiles, in addition to those of ops/cuda/cp_async.cuh and mma.cuh.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "ops/cuda/cp_async.cuh"
#include "ops/cuda/mma.cuh"

namespace warpwright::ops::attention::cuda {

inline constexpr float kLog2e = 1.44269504f, kLn2 = 0.693147181f;

using gpu::cp_async;
using gpu::cp_async_commit_group;
using gpu::cp_async_wait_group;
using gpu::load_matrices;
using gpu::load_matrices_transposed;
using gpu::multiply;
using gpu::pack;
using gpu::shared_address;
using gpu::to_tf32;

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
