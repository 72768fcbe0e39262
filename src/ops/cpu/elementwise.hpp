// Element-wise loops over contiguous tensors: memory-bound, in blocks that the threads share out.
#pragma once

#include "ops/cpu/simd.hpp"

namespace warpwright::ops::simd {
namespace {

constexpr std::int64_t kElementwiseBlock = 16384;  // a multiple of every vector's length

// Calls f(i, n) for the vectors of [0, count), as for_each_vector does, on several threads.
template <class F>
void for_each_vector_parallel(std::int64_t count, int threads, const F& f) {
  const std::int64_t blocks = (count + kElementwiseBlock - 1) / kElementwiseBlock;
  const int workers = blocks < threads ? (blocks > 0 ? static_cast<int>(blocks) : 1) : threads;
#pragma omp parallel for schedule(static) num_threads(workers)
  for (std::int64_t block = 0; block < blocks; ++block) {
    const F local = f;  // its captures in registers: a vector store could alias those of f
    const std::int64_t begin = block * kElementwiseBlock;
    const std::int64_t end = count - begin < kElementwiseBlock ? count : begin + kElementwiseBlock;
    for_each_vector(begin, end, local);
  }
}

}  // namespace
}  // namespace warpwright::ops::simd
