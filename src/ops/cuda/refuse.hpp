// The refusals that most CUDA variants share, as the functions that stand in a list of variants.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

// Empty on a GPU for fp32, bf16 and fp16.
std::string refuse_without_gpu(DType dtype, const DeviceInfo& device);

template <class Problem>
std::string refuse_cuda(const Problem& p, const DeviceInfo& device) {
  return refuse_without_gpu(p.dtype, device);
}

}  // namespace warpwright::ops
