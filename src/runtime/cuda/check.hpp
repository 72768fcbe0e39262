// Every call of CUDA's runtime goes through check(), and every launch is followed by check_launch().
// For sources that are compiled with CUDA's headers.
#pragma once

#include <cuda_runtime.h>

#include <string_view>

namespace warpwright::cuda {

[[noreturn]] void throw_error(cudaError_t status, std::string_view doing);

// `doing`: "allocating", "norm.forward cuda.warp_row".
inline void check(cudaError_t status, std::string_view doing) {
  if (status != cudaSuccess) throw_error(status, doing);
}

inline void check_launch(std::string_view doing) {
  check(cudaGetLastError(), doing);
}

}  // namespace warpwright::cuda
