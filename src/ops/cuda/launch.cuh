// Dynamic shared memory of a launch.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/check.hpp"
#include "runtime/device.hpp"

namespace warpwright::ops::gpu {

// Allows a kernel to use this many bytes of dynamic shared memory. Without it, static and dynamic shared
// memory together may take 48 KiB; the threshold below leaves 16 KiB of them to the static part.
template <class Kernel>
void allow_shared(Kernel* kernel, std::size_t bytes) {
  if (bytes <= 32 * 1024) return;
  warpwright::cuda::check(
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(bytes)),
      "raising a kernel's shared memory");
}

}  // namespace warpwright::ops::gpu
