// Launches a kernel with a block for each worker of a schedule.
#pragma once

#include <string_view>

#include "runtime/cuda/check.hpp"

namespace warpwright::ops::matmul::cuda {

// waits: blocks wait for each other, so they must run at once.
template <class Parameters>
void launch_workers(void (*kernel)(Parameters), const Parameters& p, int workers, int threads,
                    std::size_t shared_bytes, bool waits, cudaStream_t stream, std::string_view what) {
  cudaLaunchAttribute together{};
  together.id = cudaLaunchAttributeCooperative;
  together.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(workers));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &together;
  config.numAttrs = waits ? 1 : 0;
  warpwright::cuda::check(cudaLaunchKernelEx(&config, kernel, p), what);
}

}  // namespace warpwright::ops::matmul::cuda
