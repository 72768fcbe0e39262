// x·Wᵀ on mma.sync. The rows of both factors are the depth. The bias, and a residual or a scale if no
// activation comes before them, are added to the sums.
#include "ops/matmul/cuda/mma_run.cuh"

namespace warpwright::ops::matmul::cuda {

void mma_forward(const Context& context, const MatmulForward& args, Schedule schedule,
                 const MmaSelection& selection, void* partials) {
  const std::int64_t M = args.x.shape[0], K = args.x.shape[1], N = args.weight.shape[0];
  visit_result_dtype(args.x.dtype, args.out.dtype, [&]<class T, class Out>() {
    mma::run<false, false>(context, mma::factor_of<T>(args.x.data, leading_of(args.x), M, K),
                           mma::factor_of<T>(args.weight.data, K, N, K), result_of<T, Out>(args),
                           args.problem().aligned, schedule, selection, partials,
                           "matmul.forward on mma.sync");
  });
}

}  // namespace warpwright::ops::matmul::cuda
