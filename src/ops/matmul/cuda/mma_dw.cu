// doutᵀ·x on mma.sync, in fp32. The rows of both factors are the depth, so both slabs are transposed.
#include "ops/matmul/cuda/mma_run.cuh"

namespace warpwright::ops::matmul::cuda {

void mma_dw(const Context& context, const MatmulDw& args, Schedule schedule, const MmaSelection& selection,
            void* partials) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.dout.shape[1];
  gpu::visit_gpu_dtype(args.x.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    mma::run<true, true>(context, mma::factor_of<T>(args.dout.data, leading_of(args.dout), N, M),
                         mma::factor_of<T>(args.x.data, leading_of(args.x), K, M), result_of<T>(args),
                         args.problem().aligned, schedule, selection, partials, "matmul.dw on mma.sync");
  });
}

}  // namespace warpwright::ops::matmul::cuda
