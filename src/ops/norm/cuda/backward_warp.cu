// Normalization backward in which a warp owns a row. backward_rows.cuh has the kernel.
#include "ops/norm/cuda/backward_kernel.cuh"

namespace warpwright::ops {
namespace norm::cuda {

template <>
template <bool from_out, class X, class P, class O>
void BackwardKernel<Share::warp>::launch_rows(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch,
                                              cudaStream_t stream) {
  const auto as = [&]<int packs, bool roomy = false, bool plain = false>() {
    launch_as<BackwardForm<packs, Share::warp, roomy, plain>, from_out>(a, launch, stream);
  };
  if constexpr (few_backward_kernels(sizeof(P) != sizeof(X), from_out, sizeof(O) != sizeof(X))) {
    as.template operator()<3>();
  } else {
    switch (launch.shape.packs) {
      case 1:
        return as.template operator()<1>();
      case 2:
        return as.template operator()<2>();
      case 3:
        return as.template operator()<3, sizeof(X) == 2>();
      default:
        if constexpr (!from_out && sizeof(X) == 2) as.template operator()<kWideWarpPacks>();
    }
  }
}

}  // namespace norm::cuda

using NormWarpRow = norm::cuda::BackwardKernel<norm::cuda::Share::warp>;

WARPWRIGHT_KERNEL(NormBackward, "cuda.warp_row"_kernel) = {.needs = Needs::gpu,
                                                           .dtypes = kGpuDTypes,
                                                           .run = NormWarpRow::run,
                                                           .refuse = NormWarpRow::refuse,
                                                           .workspace = NormWarpRow::workspace,
                                                           .configuration = NormWarpRow::configuration};

}  // namespace warpwright::ops
