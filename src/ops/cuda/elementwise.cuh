// Runs operations that compute each element from the elements at the same index.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/vector.cuh"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::gpu {

inline constexpr int kElementwiseThreads = 256;

// Each thread processes one pack of `lanes` consecutive elements. The elements after the last whole pack are
// processed one by one.
template <int lanes, class F>
__global__ void __launch_bounds__(kElementwiseThreads) for_each_packed(std::int64_t elements, F f) {
  const std::int64_t first = (static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) * lanes;
  if (first + lanes <= elements) {
    f.template at<lanes>(first);
  } else {
    for (std::int64_t i = first; i < elements; ++i) f.template at<1>(i);
  }
}

// Calls f.at<N>(i) for all elements; each call covers the N elements from i on. N is the number of lanes in a
// pack of T if `aligned` (every tensor begins at a multiple of 16 bytes), otherwise 1.
template <class T, class F>
void for_each_element(std::int64_t elements, bool aligned, const F& f, cudaStream_t stream,
                      const char* name) {
  if (elements == 0) return;
  const int lanes = aligned ? kPackedLanes<T> : 1;
  const std::int64_t a_block = static_cast<std::int64_t>(kElementwiseThreads) * lanes;
  const auto blocks = static_cast<unsigned>((elements + a_block - 1) / a_block);
  if (aligned) {
    for_each_packed<kPackedLanes<T>><<<blocks, kElementwiseThreads, 0, stream>>>(elements, f);
  } else {
    for_each_packed<1><<<blocks, kElementwiseThreads, 0, stream>>>(elements, f);
  }
  warpwright::cuda::check_launch(name);
}

}  // namespace warpwright::ops::gpu
