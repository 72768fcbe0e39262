// The same as cuda.warp_loop of ops/layernorm: any row length, any alignment, fp64 too.
#include "ops/layernorm/cuda/warp_loop.cuh"

#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/layernorm/cuda/lost_columns.cuh"

namespace warpwright::ops {
namespace {

using namespace bias_residual_layernorm;
using namespace layernorm::cuda;

void forward(const Context& context, const SumForward& args) {
  visit_norm_types(args.x.dtype, args.weight, args.x.dtype,
                   [&]<class T, class P, class O>(NormTypes<T, P, O>) {
                     using A = Arithmetic<T>;
                     const LoopRows<T, P, T> a{data_of<const T>(args.x),
                                               data_of<const T>(args.x_bias),
                                               data_of<const T>(args.residual),
                                               data_of<const P>(args.weight),
                                               data_of<const P>(args.bias),
                                               data_of<T>(args.sum),
                                               data_of<T>(args.out),
                                               data_of<A>(args.mean),
                                               data_of<A>(args.rstd),
                                               args.x.shape[0],
                                               args.x.shape[1],
                                               static_cast<A>(args.eps),
                                               !args.rms,
                                               args.rows.as<std::int32_t>()};
                     launch_loop<true>(a, context.stream().get(), "sum and norm forward cuda.warp_loop");
                   });
  keep_lost_columns(context, norm_of(args, args.sum), args.sum);
}

}  // namespace

WARPWRIGHT_KERNEL(BiasResidualLayerNormForward, "cuda.warp_loop"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kFloatingDTypes,
    .run = run_as_sum<forward>,
    .configuration = loop_configuration<BiasResidualLayerNormProblem>};
WARPWRIGHT_KERNEL(ResidualLayerNormForward, "cuda.warp_loop"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kFloatingDTypes,
    .run = run_as_sum<forward>,
    .configuration = loop_configuration<ResidualLayerNormProblem>};

}  // namespace warpwright::ops
