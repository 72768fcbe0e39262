// The refusals of ops/layernorm's kernels, which ops/rmsnorm and the fused operations share.
#pragma once

#include "ops/layernorm/kernels.hpp"

namespace warpwright::ops::layernorm {

// fp16 beside what refuse_without_avx2 lets pass: its conversions (F16C) come with AVX2.
inline DType of_vectors(DType dtype) {
  return dtype == DType::f16 ? DType::bf16 : dtype;
}
template <class Problem>
std::string refuse_avx2_rows(const Problem& p, const DeviceInfo& device) {
  return refuse_without_avx2(of_vectors(p.dtype), device);
}
template <class Problem>
std::string refuse_avx512_rows(const Problem& p, const DeviceInfo& device) {
  return refuse_without_avx512(of_vectors(p.dtype), device);
}

namespace cuda {

std::string refuse_any_row(const NormProblem& p, const DeviceInfo& device);
template <class Problem>
std::string refuse_any(const Problem& p, const DeviceInfo& device) {
  return refuse_any_row(p, device);
}
std::string refuse_row(RowShape shape, DType dtype, const DeviceInfo& device);
std::string refuse_warp_row_forward(const NormForwardProblem& p, const DeviceInfo& device);
std::string refuse_warp_row_backward(const NormBackwardProblem& p, const DeviceInfo& device);
std::size_t two_pass_workspace(const NormBackwardProblem& p, const DeviceInfo& device);
std::size_t warp_row_workspace(const NormBackwardProblem& p, const DeviceInfo& device);

}  // namespace cuda
}  // namespace warpwright::ops::layernorm
