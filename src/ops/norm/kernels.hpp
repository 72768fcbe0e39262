// Shared by the kernels of ops/norm.
#pragma once

#include "ops/norm/norm.hpp"

namespace warpwright::ops::norm {

// What is normalized, where it is stored: the sum if there is a residual, else x.
inline const Tensor& normalized_of(const NormForward& args) {
  return args.residual ? args.sum : args.x;
}

// The vector kernels of CPUs: AVX2 comes with the conversions of fp16 (F16C).
inline constexpr DTypes kVectorDTypes{DType::f32, DType::bf16, DType::f16};

// The CPU's kernels cut rows into a number of parts that depends on N alone, so that the parameters'
// gradients have the same bits for any number of threads.
inline constexpr std::int64_t kRowsPerPart = 32;
inline constexpr std::int64_t kMaxParts = 64;
std::int64_t row_parts(std::int64_t N);

// The scratch of the CPU's forward holds the unrounded sum of a row for each part, if it is not stored. That
// of its backward holds for each part dweight, dbias and dx of lost columns, and a row of 1/weight.
std::size_t cpu_forward_workspace(const NormForwardProblem& p, const DeviceInfo& device);
std::string cpu_forward_configuration(const NormForwardProblem& p, const DeviceInfo& device);
std::size_t cpu_backward_workspace(const NormBackwardProblem& p, const DeviceInfo& device);
std::string cpu_backward_configuration(const NormBackwardProblem& p, const DeviceInfo& device);  // "64 parts"

// Finds the lost columns and keeps their x, if they are asked for; before anything is written over x.
void keep_lost_columns(const NormForward& args);

}  // namespace warpwright::ops::norm
