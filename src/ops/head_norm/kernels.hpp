// Shared by the kernels of QK norm.
#pragma once

#include "ops/head_norm/head_norm.hpp"

namespace warpwright::ops::head_norm {

inline constexpr std::int64_t kMostHead = 256;  // elements

// The CPU's backward divides the rows into a number of parts that depends only on N. The weights' gradients
// thus have the same bits for any number of threads.
inline constexpr std::int64_t kRowsPerPart = 32, kMostParts = 64;
std::int64_t row_parts(std::int64_t N);
// Scratch of the CPU's backward: (parts, 2, HS) fp32, the parts of dq_weight and dk_weight.
std::size_t cpu_workspace(const HeadNormBackwardProblem& p, const DeviceInfo& device);

}  // namespace warpwright::ops::head_norm
