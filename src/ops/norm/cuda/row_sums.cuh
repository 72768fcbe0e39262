// Two sums at once over a warp or over a block's warps.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/norm/shape.hpp"

namespace warpwright::ops::norm::cuda {

// Returns the sum over the warp of a in the lower half of the warp, and that of b in the upper half. This
// takes half as many exchanges as two sums.
__device__ inline float warp_sum_of_both(float a, float b) {
  const bool upper = threadIdx.x % gpu::kWarp >= gpu::kWarp / 2;
  const float mine = (upper ? b : a) + __shfl_xor_sync(gpu::kAllLanes, upper ? a : b, gpu::kWarp / 2);
  return gpu::warp_sum<gpu::kWarp / 2>(mine);
}
__device__ inline float2 to_every_lane(float of_half) {
  const float other = __shfl_xor_sync(gpu::kAllLanes, of_half, gpu::kWarp / 2);
  return threadIdx.x % gpu::kWarp < gpu::kWarp / 2 ? float2{of_half, other} : float2{other, of_half};
}

// Sums over a block: each warp writes its parts, and after a barrier each thread adds up the parts. The parts
// of absent warps must be 0.
__device__ inline void put_part_of_both(float a, float b, float2* parts) {
  const float mine = warp_sum_of_both(a, b);
  if (threadIdx.x % (gpu::kWarp / 2) == 0) {
    reinterpret_cast<float*>(parts)[threadIdx.x / (gpu::kWarp / 2)] = mine;
  }
}
__device__ inline float2 sum_parts_of_both(const float2* parts, int warps) {
  float2 sum{0, 0};
  const auto add_four = [&](int first) {
    const auto* fours = reinterpret_cast<const float4*>(parts + first);
    const float4 p = fours[0], q = fours[1];
    sum.x += (p.x + p.z) + (q.x + q.z);
    sum.y += (p.y + p.w) + (q.y + q.w);
  };
  add_four(0);
  if (warps > 4) add_four(4);
  if (warps > 8) add_four(8), add_four(12);
  return sum;
}

}  // namespace warpwright::ops::norm::cuda
