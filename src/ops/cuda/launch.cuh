// Sizes of grids.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "runtime/cuda/check.hpp"
#include "runtime/device.hpp"

namespace warpwright::ops::gpu {

// The number of blocks of a kernel that loops over its work: one block for each of `pieces`, but at most as
// many as the GPU holds at once.
template <class Kernel>
unsigned persistent_blocks(Kernel* kernel, int threads, std::size_t shared_bytes, std::int64_t pieces,
                           const DeviceInfo& device) {
  int resident = 0;
  warpwright::cuda::check(
      cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, threads, shared_bytes),
      "sizing a grid");
  const auto most = static_cast<std::int64_t>(resident) * device.gpu.multiprocessors;
  return static_cast<unsigned>(std::clamp<std::int64_t>(pieces, 1, std::max<std::int64_t>(most, 1)));
}

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
