// The second stage of dweight and dbias: the parts (parts, 2, C) are added up by column, in a fixed order.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/norm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::norm::cuda {

// Adds up `count` parts of fp32 (fp64 beside fp64) into dweight and dbias, either of which may be absent.
void add_column_sums(const Context& context, const NormBackward& args, const void* parts, int count);

}  // namespace warpwright::ops::norm::cuda
