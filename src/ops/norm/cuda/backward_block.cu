// Normalization backward in which the warps of one block share a row. backward_rows.cuh has the kernel.
#include "ops/norm/cuda/backward_kernel.cuh"

namespace warpwright::ops {
namespace norm::cuda {

template <>
template <bool from_out, class X, class P, class O>
void BackwardKernel<Share::block>::launch_rows(const BackwardRows<X, P, O>& a, const BackwardLaunch& launch,
                                               cudaStream_t stream) {
  const auto as = [&]<int packs, bool roomy = false, bool plain = false>() {
    launch_as<BackwardForm<packs, Share::block, roomy, plain>, from_out>(a, launch, stream);
  };
  if constexpr (few_backward_kernels(sizeof(P) != sizeof(X), from_out, sizeof(O) != sizeof(X))) {
    as.template operator()<3>();
  } else {
    // Rows without mean and bias have separate kernels for the backward from the output, which are faster.
    const bool plain = from_out && !a.centered && !a.bias, roomy = launch.shape.roomy;
    switch (launch.shape.packs) {
      case 2:
        if constexpr (from_out) {
          if (plain) return as.template operator()<2, true, true>();
        }
        return as.template operator()<2, true>();
      case 3:
        if constexpr (from_out) {
          if (roomy && plain) return as.template operator()<3, true, true>();
        }
        return roomy ? as.template operator()<3, true>() : as.template operator()<3>();
      default:
        return as.template operator()<4>();
    }
  }
}

}  // namespace norm::cuda

using NormBlockRow = norm::cuda::BackwardKernel<norm::cuda::Share::block>;

WARPWRIGHT_KERNEL(NormBackward, "cuda.block_row"_kernel) = {.needs = Needs::gpu,
                                                            .dtypes = kGpuDTypes,
                                                            .run = NormBlockRow::run,
                                                            .refuse = NormBlockRow::refuse,
                                                            .workspace = NormBlockRow::workspace,
                                                            .configuration = NormBlockRow::configuration};

}  // namespace warpwright::ops
