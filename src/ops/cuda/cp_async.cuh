// Asynchronous copies from device memory to shared memory. A thread starts a copy and waits for it later; the
// data does not pass through its registers. Copies of other threads are visible only after a barrier. All
// addresses are multiples of the copy's bytes. Source: PTX ISA 9.0, "cp.async".
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "ops/cuda/shared.cuh"

namespace warpwright::ops::gpu {

// Copies 16 bytes.
__device__ inline void cp_async_16(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(to)), "l"(from) : "memory");
}
// Copies 16 bytes, or zeros if they are not wanted.
__device__ inline void cp_async_16_or_zeros(std::uint32_t to, const void* from, bool wanted) {
  asm volatile(
      "{\n.reg .pred outside;\nsetp.eq.u32 outside, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, outside;\n}\n" ::"r"(to),
      "l"(from), "r"(static_cast<unsigned>(wanted)));
}
// Copies min(valid, kBytes) bytes and fills the rest with zeros. kBytes: 4, 8 or 16.
template <int kBytes>
__device__ inline void cp_async(void* to, const void* from, int valid) {
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(shared_address(to)), "l"(from),
                 "r"(valid));
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;\n" ::"r"(shared_address(to)), "l"(from),
                 "n"(kBytes), "r"(valid));
  }
}

// Ends a group of this thread's copies.
__device__ inline void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;\n" ::);
}
// Returns when all but the last kPending groups of this thread's copies have arrived.
template <int kPending>
__device__ inline void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}
// Returns when all copies of this thread have arrived.
__device__ inline void cp_async_wait_all() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace warpwright::ops::gpu
