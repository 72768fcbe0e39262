// Normalization forward in which the registers of a block's warps hold a row. forward_rows.cuh has the
// kernel.
#include "ops/norm/cuda/forward_kernel.cuh"

namespace warpwright::ops {

using NormBlockRow = norm::cuda::ForwardKernel<norm::cuda::Share::block>;

WARPWRIGHT_KERNEL(NormForward, "cuda.block_row"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = NormBlockRow::run,
                                                           .refuse = NormBlockRow::refuse,
                                                           .configuration = NormBlockRow::configuration};

}  // namespace warpwright::ops
