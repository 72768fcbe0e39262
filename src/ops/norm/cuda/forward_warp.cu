// Normalization forward in which the registers of a warp hold a row. forward_rows.cuh has the kernel.
#include "ops/norm/cuda/forward_kernel.cuh"

namespace warpwright::ops {

using NormWarpRow = norm::cuda::ForwardKernel<norm::cuda::Share::warp>;

WARPWRIGHT_KERNEL(NormForward, "cuda.warp_row"_kernel) = {.needs = Needs::gpu,
                                                          .dtypes = kGpuDTypes,
                                                          .run = NormWarpRow::run,
                                                          .refuse = NormWarpRow::refuse,
                                                          .configuration = NormWarpRow::configuration};

}  // namespace warpwright::ops
