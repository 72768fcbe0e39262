// Normalization with every row in registers: a row is read from memory once, and its statistics are taken in
// one pass over the registers. 16-byte accesses; a warp has a row, or a block's warps share a longer one.
// Memory-bound: 2 passes of the tensor (x, out).
#include "ops/layernorm/cuda/element.cuh"
#include "ops/layernorm/cuda/lost_columns.cuh"
#include "ops/layernorm/cuda/rows.cuh"

namespace warpwright::ops {
namespace layernorm::cuda {
namespace {

template <class X, class P, class O>
void forward_as(const Context& context, const NormForward& args, NormTypes<X, P, O>) {
  const int C = static_cast<int>(args.x.shape[1]);
  ForwardRows<X, P, O> a{};
  a.x = data_of<const X>(args.x);
  a.weight = data_of<const P>(args.weight);
  a.bias = data_of<const P>(args.bias);
  a.out = data_of<O>(args.out);
  a.mean = data_of<float>(args.mean);
  a.rstd = data_of<float>(args.rstd);
  a.N = args.x.shape[0];
  a.C = C;
  a.eps = static_cast<float>(args.eps);
  a.centered = args.centered;
  a.streaming = leaves_caches(2 * args.x.bytes(), context.device());
  launch_forward<false, true>(a, forward_shape(C, args.x.dtype, sizeof(P) != sizeof(X)), context,
                              "norm forward cuda.warp_row");
}

void forward(const Context& context, const NormForward& args) {
  visit_norm_types(args.x.dtype, args.weight, args.out.dtype,
                   [&]<class X, class P, class O>(NormTypes<X, P, O> types) {
                     if constexpr (!std::is_same_v<X, double>) forward_as(context, args, types);
                   });
  keep_lost_columns(context, args, args.x);
}

RowShape shape_of(const NormForwardProblem& p) {
  return forward_shape(p.C, p.dtype, p.fp32_parameters);
}

Refusal refuse(const NormForwardProblem& p, const DeviceInfo&) {
  return refuse_shape(shape_of(p), p.aligned);
}

std::string configuration(const NormForwardProblem& p, const DeviceInfo&) {
  return text_of(shape_of(p));
}

}  // namespace
}  // namespace layernorm::cuda

WARPWRIGHT_KERNEL(LayerNormForward, "cuda.warp_row"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = layernorm::run_as_norm<layernorm::cuda::forward>,
    .refuse = layernorm::cuda::refuse,
    .configuration = layernorm::cuda::configuration};
WARPWRIGHT_KERNEL(RMSNormForward, "cuda.warp_row"_kernel) = {
    .needs = Needs::gpu,
    .dtypes = kGpuDTypes,
    .run = layernorm::run_as_norm<layernorm::cuda::forward>,
    .refuse = layernorm::cuda::refuse,
    .configuration = layernorm::cuda::configuration};

}  // namespace warpwright::ops
