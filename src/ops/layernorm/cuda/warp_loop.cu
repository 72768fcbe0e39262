#include "ops/layernorm/cuda/warp_loop.cuh"

#include "ops/layernorm/cuda/lost_columns.cuh"

namespace warpwright::ops {
namespace layernorm::cuda {
namespace {

template <class X, class P, class O>
void forward_as(const Context& context, const NormForward& args, NormTypes<X, P, O>) {
  using A = Arithmetic<X>;
  const LoopRows<X, P, O> a{data_of<const X>(args.x),
                            nullptr,
                            nullptr,
                            data_of<const P>(args.weight),
                            data_of<const P>(args.bias),
                            nullptr,
                            data_of<O>(args.out),
                            data_of<A>(args.mean),
                            data_of<A>(args.rstd),
                            args.x.shape[0],
                            args.x.shape[1],
                            static_cast<A>(args.eps),
                            args.centered};
  launch_loop<false>(a, context.stream().get(), "norm forward cuda.warp_loop");
}

void forward(const Context& context, const NormForward& args) {
  visit_norm_types(args.x.dtype, args.weight, args.out.dtype,
                   [&](auto types) { forward_as(context, args, types); });
  keep_lost_columns(context, args, args.x);
}

}  // namespace
}  // namespace layernorm::cuda

WARPWRIGHT_KERNEL(LayerNormForward, "cuda.warp_loop"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kFloatingDTypes,
    .run = layernorm::run_as_norm<layernorm::cuda::forward>,
    .configuration = layernorm::cuda::loop_configuration<NormForwardProblem>};
WARPWRIGHT_KERNEL(RMSNormForward, "cuda.warp_loop"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kFloatingDTypes,
    .run = layernorm::run_as_norm<layernorm::cuda::forward>,
    .configuration = layernorm::cuda::loop_configuration<NormForwardProblem>};

}  // namespace warpwright::ops
