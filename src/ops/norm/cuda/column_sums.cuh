// The second stage of dweight and dbias: adds up the parts (parts, 2, C) by column in a fixed order.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/norm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::norm::cuda {

// Adds up `count` parts of fp32 (fp64 for fp64 data) into dweight and dbias. Either of them may be absent.
void add_column_sums(const Context& context, const NormBackward& args, const void* parts, int count);

}  // namespace warpwright::ops::norm::cuda
