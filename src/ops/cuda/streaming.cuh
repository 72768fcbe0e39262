// Accesses to fp32 numbers that may be marked as streaming: their lines are then the first to leave the
// caches. For kernels that compare both.
#pragma once

namespace warpwright::ops::gpu {

template <bool streaming>
__device__ float load_number(const float* p) {
  if constexpr (streaming) return __ldcs(p);
  return *p;
}
template <bool streaming>
__device__ void store_number(float* p, float value) {
  if constexpr (streaming) {
    __stcs(p, value);
  } else {
    *p = value;
  }
}

}  // namespace warpwright::ops::gpu
