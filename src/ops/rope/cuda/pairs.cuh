// The rotation of pairs in registers, for every kernel that rotates.
#pragma once

#include "ops/cuda/vector.cuh"
#include "ops/rope/rope.hpp"

namespace warpwright::ops::rope {

// Rotates the pairs of two packs.
template <RopeLayout layout, class T, int L>
__device__ void rotate_packs(gpu::Packed<T, L>& a, gpu::Packed<T, L>& b, const float (&cos)[L],
                             const float (&sin)[L]) {
  float out[2][L];
#pragma unroll
  for (int i = 0; i < L; ++i) {
    const int p = layout == RopeLayout::half ? i : 2 * i, q = layout == RopeLayout::half ? i + L : 2 * i + 1;
    const float x_p = p < L ? a[p % L] : b[p % L], x_q = q < L ? a[q % L] : b[q % L];
    out[p / L][p % L] = x_p * cos[i] - x_q * sin[i];
    out[q / L][q % L] = x_q * cos[i] + x_p * sin[i];
  }
  a = gpu::Packed<T, L>::from_floats(out[0]);
  b = gpu::Packed<T, L>::from_floats(out[1]);
}

}  // namespace warpwright::ops::rope
