// The refusals of ops/layernorm's kernels, which ops/rmsnorm and the fused operations share.
#pragma once

#include "ops/op.hpp"

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

}  // namespace warpwright::ops::layernorm
