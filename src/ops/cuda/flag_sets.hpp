// Flags in a GPU's memory, by which the blocks of a launch hand over partial results (flags.cuh).
#pragma once

#include "runtime/context.hpp"

namespace warpwright::ops::gpu {

// The index of this Context's set of flags. The launches of one Context follow each other, so they can share
// the flags, as they share the scratch that holds the partial results. Launches of two Contexts may run at
// once, so each Context has its own set. A launch has kFlagsOfSet flags: kernels take no configuration that
// needs more. Throws Error if kFlagSets Contexts have a set already.
inline constexpr int kFlagSets = 64, kFlagsOfSet = 1024;
int flag_set_of(const Context& context);

}  // namespace warpwright::ops::gpu
