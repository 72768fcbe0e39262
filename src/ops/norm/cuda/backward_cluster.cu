// Normalization backward in which a cluster of blocks shares a row. backward_rows.cuh has the kernel.
#include "ops/norm/cuda/backward_kernel.cuh"

namespace warpwright::ops {
namespace norm::cuda {

template <>
template <bool from_out, class X, class P, class O>
void BackwardKernel<Share::cluster>::launch_rows(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch,
                                                 cudaStream_t stream) {
  const auto as = [&]<int packs, bool roomy = false, bool plain = false>() {
    launch_as<BackwardForm<packs, Share::cluster, roomy, plain>, from_out>(a, launch, stream);
  };
  if constexpr (few_backward_kernels(sizeof(P) != sizeof(X), from_out, sizeof(O) != sizeof(X))) {
    as.template operator()<3>();
  } else {
    // Rows without mean and bias have separate kernels, which are faster.
    const bool plain = !a.centered && !a.bias, roomy = launch.shape.roomy;
    if (plain)
      return roomy ? as.template operator()<3, true, true>() : as.template operator()<3, false, true>();
    roomy ? as.template operator()<3, true>() : as.template operator()<3>();
  }
}

}  // namespace norm::cuda

using NormClusterRow = norm::cuda::BackwardKernel<norm::cuda::Share::cluster>;

WARPWRIGHT_KERNEL(NormBackward, "cuda.cluster_row"_kernel) = {.needs = Needs::gpu,
                                                              .dtypes = kGpuDTypes,
                                                              .run = NormClusterRow::run,
                                                              .refuse = NormClusterRow::refuse,
                                                              .workspace = NormClusterRow::workspace,
                                                              .configuration = NormClusterRow::configuration};

}  // namespace warpwright::ops
