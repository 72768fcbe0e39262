// Sums of tiles whose depth is cut. Workers hand them over through device memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace warpwright::ops::matmul::cuda {

// Waits until all of these flags, `stride` apart, are up. Then lowers them for the next launch.
__device__ inline void take_flags(unsigned* first, int stride, int count, int barrier, int thread) {
  for (int i = thread; i < count; i += 128) {
    unsigned* const flag = first + static_cast<std::int64_t>(i) * stride;
    unsigned ready = 0;
    while (ready == 0)
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(ready) : "l"(flag) : "memory");
    *flag = 0;
  }
  asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
}

// A group's sums for the worker that owns the tile.
template <int kBlocks, int kSums>
struct Part {
  float* sums;
  unsigned* flag;
  int barrier, thread;

  static constexpr int kQuads = kBlocks * kSums / 4;
  __device__ float4* quad(int i) const { return reinterpret_cast<float4*>(sums) + i * 128 + thread; }

  __device__ void write(const float (&sum)[kBlocks][kSums], int first, int count) const {
#pragma unroll
    for (int i = first; i < first + count; ++i) {
      const float* four = &sum[i / (kSums / 4)][i % (kSums / 4) * 4];
      __stcg(quad(i), make_float4(four[0], four[1], four[2], four[3]));
    }
  }
  __device__ void raise_flag() const {
    asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
    if (thread == 0) asm volatile("st.release.gpu.global.u32 [%0], %1;\n" ::"l"(flag), "r"(1) : "memory");
  }
  // Waits until this many groups have arrived. Their earlier writes are then visible to all of them. The last
  // group to leave lowers the flag.
  __device__ void meet(int groups) const {
    asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
    if (thread == 0) {
      asm volatile("red.release.gpu.global.add.u32 [%0], %1;\n" ::"l"(flag), "r"(1) : "memory");
      unsigned here = 0;
      while (here < static_cast<unsigned>(groups))
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];\n" : "=r"(here) : "l"(flag) : "memory");
      if (atomicAdd(flag, 1u) == static_cast<unsigned>(2 * groups - 1)) *flag = 0;
    }
    asm volatile("bar.sync %0, 128;\n" ::"r"(barrier) : "memory");
  }
  template <int kCount>
  __device__ void add_to(float (&sum)[kBlocks][kSums], int first) const {
#pragma unroll
    for (int i = first; i < first + kCount / 4; ++i) {
      const float4 more = __ldcg(quad(i));
      float* four = &sum[i / (kSums / 4)][i % (kSums / 4) * 4];
      four[0] += more.x, four[1] += more.y, four[2] += more.z, four[3] += more.w;
    }
  }
};

}  // namespace warpwright::ops::matmul::cuda
