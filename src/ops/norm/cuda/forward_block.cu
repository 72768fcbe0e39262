// Normalization forward with a row in the registers of a block's warps together.
#include "ops/norm/cuda/forward_kernel.cuh"

namespace warpwright::ops {

using NormBlockRow = norm::cuda::ForwardKernel<norm::cuda::Share::block>;

WARPWRIGHT_KERNEL(NormForward, "cuda.block_row"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = NormBlockRow::run,
                                                           .refuse = NormBlockRow::refuse,
                                                           .configuration = NormBlockRow::configuration};

}  // namespace warpwright::ops
