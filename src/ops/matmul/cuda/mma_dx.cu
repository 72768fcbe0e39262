// dout·W on mma.sync. The rows of the weight are the depth, so its slabs are transposed.
#include "ops/matmul/cuda/mma_run.cuh"

namespace warpwright::ops::matmul::cuda {

void mma_dx(const Context& context, const MatmulDx& args, Schedule schedule, const MmaSelection& selection,
            void* partials) {
  const std::int64_t M = args.dout.shape[0], N = args.dout.shape[1], K = args.weight.shape[1];
  visit_result_dtype(args.dout.dtype, args.dx.dtype, [&]<class T, class Out>() {
    mma::run<false, true>(context, mma::factor_of<T>(args.dout.data, leading_of(args.dout), M, N),
                          mma::factor_of<T>(args.weight.data, K, K, N),
                          Result<T, Out>{static_cast<Out*>(args.dx.data), leading_of(args.dx)},
                          args.problem().aligned, schedule, selection, partials, "matmul.dx on mma.sync");
  });
}

}  // namespace warpwright::ops::matmul::cuda
