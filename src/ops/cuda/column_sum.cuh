// The last stage of sums over columns: adds up partial sums.
#pragma once

#include "ops/cuda/reduce.cuh"

namespace warpwright::ops::gpu {

// Calls put(sum) with the sum of the numbers load(0), …, load(count − 1) of a lane's column. A block of
// kWarps warps owns 32 columns, and all its threads call this. A warp adds every kWarps-th number, kAtOnce of
// which are loaded together; then the first warp adds the warps' sums in order, and puts the result. inside:
// there is such a column.
template <int kWarps, int kAtOnce, class A, class Index, class Load, class Put>
__device__ void sum_column(int warp, int lane, bool inside, Index count, const Load& load, const Put& put) {
  __shared__ A sums[kWarps][kWarp];
  A sum = 0;
  if (inside) {
#pragma unroll kAtOnce
    for (Index i = warp; i < count; i += kWarps) sum += load(i);
  }
  sums[warp][lane] = sum;
  __syncthreads();
  if (warp > 0 || !inside) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other) sum += sums[other][lane];
  put(sum);
}

}  // namespace warpwright::ops::gpu
