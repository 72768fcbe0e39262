// Shared by the kernels of ops/norm.
#pragma once

#include "ops/norm/norm.hpp"

namespace warpwright::ops::norm {

// The tensor that stores the normalized rows' input: sum if there is a residual, otherwise x.
inline const Tensor& normalized_of(const NormForward& args) {
  return args.residual ? args.sum : args.x;
}

// The dtypes of the CPU's vector kernels. Every processor with AVX2 also has the conversions of fp16 (F16C).
inline constexpr DTypes kVectorDTypes{DType::f32, DType::bf16, DType::f16};

// The CPU's kernels divide the rows into a number of parts that depends only on N. The parameters' gradients
// thus have the same bits for any number of threads.
inline constexpr std::int64_t kRowsPerPart = 32;
inline constexpr std::int64_t kMaxParts = 64;
std::int64_t row_parts(std::int64_t N);

// Scratch of the CPU's kernels. Forward: the unrounded sum of one row per part, if the sum is not stored.
// Backward: per part, dweight, dbias and dx of the lost columns, and one row of 1/weight.
std::size_t cpu_forward_workspace(const NormForwardProblem& p, const DeviceInfo& device);
std::string cpu_forward_configuration(const NormForwardProblem& p, const DeviceInfo& device);
std::size_t cpu_backward_workspace(const NormBackwardProblem& p, const DeviceInfo& device);
std::string cpu_backward_configuration(const NormBackwardProblem& p, const DeviceInfo& device);  // "64 parts"

// If the caller asks for lost columns, finds them and keeps their x. Must run before x is overwritten.
void keep_lost_columns(const NormForward& args);

}  // namespace warpwright::ops::norm
