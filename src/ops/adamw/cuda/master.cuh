// Masters (ops/adamw/master.hpp) in a GPU's memory. Both addresses are multiples of 2 · lanes bytes.
#pragma once

#include <cuda_bf16.h>

#include "ops/adamw/master.hpp"

namespace warpwright::ops::adamw_kernels {

template <int lanes>
struct alignas(2 * lanes) Halves {
  std::uint16_t at[lanes];
};

template <int lanes>
__device__ void load_masters(const __nv_bfloat16* parameter, const std::int16_t* remainder,
                             float (&masters)[lanes]) {
  const auto upper = *reinterpret_cast<const Halves<lanes>*>(parameter);
  const auto rest = *reinterpret_cast<const Halves<lanes>*>(remainder);
#pragma unroll
  for (int j = 0; j < lanes; ++j) {
    masters[j] = master_of(upper.at[j], static_cast<std::int16_t>(rest.at[j]));
  }
}

template <int lanes>
__device__ void store_masters(__nv_bfloat16* parameter, std::int16_t* remainder,
                              const float (&masters)[lanes]) {
  Halves<lanes> upper, rest;
#pragma unroll
  for (int j = 0; j < lanes; ++j) {
    upper.at[j] = __bfloat16_as_ushort(__float2bfloat16_rn(masters[j]));
    rest.at[j] = static_cast<std::uint16_t>(remainder_of(masters[j], upper.at[j]));
  }
  *reinterpret_cast<Halves<lanes>*>(parameter) = upper;
  *reinterpret_cast<Halves<lanes>*>(remainder) = rest;
}

}  // namespace warpwright::ops::adamw_kernels
