// The second stage of dweight and dbias: adds up the parts (parts, 2, C) by column in a fixed order.
#pragma once

#include "ops/cuda/reduce.cuh"
#include "ops/norm/kernels.hpp"
#include "runtime/cuda/check.hpp"

namespace warpwright::ops::norm::cuda {

// The warps of the second stage's block, 32 columns wide, for rows of this length: 8 or 32.
int column_sum_warps(std::int64_t C);

// Adds up `count` parts of fp32 (fp64 for fp64 data) into dweight and dbias. Either of them may be absent.
void add_column_sums(const Context& context, const NormBackward& args, const void* parts, int count,
                     int warps);
inline void add_column_sums(const Context& context, const NormBackward& args, const void* parts, int count) {
  add_column_sums(context, args, parts, count, column_sum_warps(args.dx.shape[1]));
}

}  // namespace warpwright::ops::norm::cuda
