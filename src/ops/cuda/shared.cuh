// Converts pointers to the addresses in shared memory that instructions use.
#pragma once

#include <cstdint>

namespace warpwright::ops::gpu {

__device__ inline std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

}  // namespace warpwright::ops::gpu
