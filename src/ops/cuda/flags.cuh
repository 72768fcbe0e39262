// The flags with which the blocks of a launch hand over partial results.
#pragma once

#include "ops/cuda/flag_sets.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::gpu {

// Sets of flags. They are zeros, and every launch returns them to zero. They come with the kernels' code, so
// that no call allocates.
static __device__ unsigned flag_sets[kFlagSets][kFlagsOfSet];

// The Context's flags, of which a launch may use the first kFlagsOfSet.
inline unsigned* flags_of(const Context& context) {
  void* sets = nullptr;
  warpwright::cuda::check(cudaGetSymbolAddress(&sets, flag_sets), "looking for flags");
  return static_cast<unsigned*>(sets) + flag_set_of(context) * kFlagsOfSet;
}

}  // namespace warpwright::ops::gpu
