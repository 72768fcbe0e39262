// Asynchronous copies from device memory to shared memory. A thread starts a copy and waits for it later; the
// data does not pass through its registers.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/shared.cuh"

namespace warpwright::ops::gpu {

// Copies 16 bytes. Both addresses are multiples of 16.
__device__ inline void start_copy16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}

// Waits until all copies that this thread started have arrived. Copies of other threads are visible only
// after a barrier.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace warpwright::ops::gpu
