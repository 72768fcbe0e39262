// Shared by the kernels.
#pragma once

#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops::global_norm_kernels {

// Writes norm and scale, given Σ g². Checks the norm after rounding it to its dtype.
void finish(const GlobalNorm& args, double sum_of_squares);

// One partial sum in fp64 for each block of kBlock elements, none of which spans two tensors.
inline constexpr std::int64_t kBlock = 16384;

// Their bytes, at most.
std::size_t partials_bytes(const GlobalNormProblem& problem, const DeviceInfo& device);

}  // namespace warpwright::ops::global_norm_kernels
