// The version of cuBLASLt, for sources without CUDA's headers.
#pragma once

#include <string>

namespace warpwright::ops::matmul::cuda {

// "" if the library cannot be loaded.
std::string cublaslt_version();

}  // namespace warpwright::ops::matmul::cuda
