// The flags with which the workers of a cut tile hand over its partial sums (partial_sums.cuh).
#pragma once

#include "ops/matmul/cuda/wgmma.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::matmul::cuda {

// Flags of cut tiles, for each group of each block. They are zeros, and every launch returns them to zero.
// They come with the kernels' code, so that no call allocates.
static __device__ unsigned flag_sets[kFlagSets][kFlagsOfSet];

// The Context's flags, of which a launch uses the first `count`.
inline unsigned* flags_of(const Context& context, int count) {
  void* sets = nullptr;
  warpwright::cuda::check(cudaGetSymbolAddress(&sets, flag_sets), "looking for flags");
  return static_cast<unsigned*>(sets) + flag_set_of(context, count) * kFlagsOfSet;
}

}  // namespace warpwright::ops::matmul::cuda
