// Copies from device memory to shared memory that a thread starts and later waits for, past its registers.
#pragma once

#include <cuda_runtime.h>

#include "ops/cuda/shared.cuh"

namespace warpwright::ops::gpu {

// 16 bytes, at multiples of 16 on either side.
__device__ inline void start_copy16(void* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared_address(shared)), "l"(global)
               : "memory");
}

// Until all that this thread has started has arrived. What other threads copied is there behind a barrier
// only.
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}

}  // namespace warpwright::ops::gpu
