// The second stage of dweight and dbias: the parts (parts, 2, C) are added up by column, in a fixed order.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/layernorm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::layernorm::cuda {

inline constexpr int kColumnSumWarps = 32;

// A lane for each column; a warp adds every 32nd part, then the warps' sums are added in order.
template <bool add>
__global__ void __launch_bounds__(kColumnSumWarps* gpu::kWarp)
    column_sums(const float* parts, int count, std::int64_t C, float* dweight, float* dbias) {
  __shared__ float sums[kColumnSumWarps][gpu::kWarp];
  const int lane = static_cast<int>(threadIdx.x) % gpu::kWarp;
  const int warp = static_cast<int>(threadIdx.x) / gpu::kWarp;
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * gpu::kWarp + lane;
  float sum = 0;
  if (column < 2 * C) {
#pragma unroll 4
    for (int part = warp; part < count; part += kColumnSumWarps) sum += parts[part * 2 * C + column];
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || column >= 2 * C) return;
  for (int other = 1; other < kColumnSumWarps; ++other) sum += sums[other][lane];
  float* gradient = column < C ? dweight : dbias;
  if (!gradient) return;
  gradient += column < C ? column : column - C;
  *gradient = add ? *gradient + sum : sum;
}

inline void add_column_sums(const float* parts, int count, const NormBackward& args, cudaStream_t stream) {
  const std::int64_t C = args.x.shape[1];
  const auto blocks = static_cast<unsigned>((2 * C + gpu::kWarp - 1) / gpu::kWarp);
  const auto kernel = args.dparameters_store == Store::add ? column_sums<true> : column_sums<false>;
  kernel<<<blocks, kColumnSumWarps * gpu::kWarp, 0, stream>>>(
      parts, count, C, static_cast<float*>(args.dweight.data), static_cast<float*>(args.dbias.data));
  warpwright::cuda::check_launch("layernorm.backward column sums");
}

}  // namespace warpwright::ops::layernorm::cuda
