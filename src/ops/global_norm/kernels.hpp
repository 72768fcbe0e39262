// Shared by the CPU's kernels.
#pragma once

#include "ops/global_norm/global_norm.hpp"

namespace warpwright::ops::global_norm_kernels {

// Writes norm and scale, given Σ g². Checks the norm after rounding it to its dtype.
void finish(const GlobalNorm& args, double sum_of_squares);

}  // namespace warpwright::ops::global_norm_kernels
