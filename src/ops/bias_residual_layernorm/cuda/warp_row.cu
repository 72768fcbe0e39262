// Bias, residual connection and normalization on a GPU with every row in registers: the kernel of
// ops/layernorm (rows.cuh), which adds up the rows as it reads them. Memory-bound: 3 passes of the tensor (x,
// residual, out), 4 if the sum is stored.
#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/layernorm/cuda/element.cuh"
#include "ops/layernorm/cuda/lost_columns.cuh"
#include "ops/layernorm/cuda/rows.cuh"

namespace warpwright::ops {
namespace {

using namespace bias_residual_layernorm;
using namespace layernorm::cuda;

RowShape shape_of(std::int64_t C, DType dtype) {
  return forward_shape(C, dtype, true);
}

template <class T, class P>
void forward_as(const Context& context, const SumForward& args, NormTypes<T, P, T>) {
  const int C = static_cast<int>(args.x.shape[1]);
  const ForwardRows<T, P, T> a{data_of<const T>(args.x),
                               data_of<const T>(args.x_bias),
                               data_of<const T>(args.residual),
                               data_of<const P>(args.weight),
                               data_of<const P>(args.bias),
                               data_of<T>(args.sum),
                               data_of<T>(args.out),
                               data_of<float>(args.mean),
                               data_of<float>(args.rstd),
                               args.x.shape[0],
                               C,
                               static_cast<float>(args.eps),
                               !args.rms,
                               leaves_caches(4 * args.out.bytes(), context.device()),
                               args.rows.as<std::int32_t>()};
  const RowShape shape = shape_of(C, args.x.dtype);
  constexpr const char* kName = "sum and norm forward cuda.warp_row";
  a.sum ? launch_forward<true, true>(a, shape, context, kName)
        : launch_forward<true, false>(a, shape, context, kName);
}

void forward(const Context& context, const SumForward& args) {
  visit_norm_types(args.x.dtype, args.weight, args.x.dtype,
                   [&]<class X, class P, class O>(NormTypes<X, P, O> types) {
                     if constexpr (!std::is_same_v<X, double> && std::is_same_v<X, O>)
                       forward_as(context, args, types);
                   });
  keep_lost_columns(context, norm_of(args, args.sum), args.sum);
}

template <class Problem>
Refusal refuse(const Problem& p, const DeviceInfo&) {
  return refuse_shape(shape_of(p.C, p.dtype), p.aligned);
}

template <class Problem>
std::string configuration(const Problem& p, const DeviceInfo&) {
  return text_of(shape_of(p.C, p.dtype));
}

}  // namespace

WARPWRIGHT_KERNEL(BiasResidualLayerNormForward, "cuda.warp_row"_kernel) = {.needs = Needs::gpu,
                                                                           .dtypes = kGpuDTypes,
                                                                           .run = run_as_sum<forward>,
                                                                           .refuse = refuse,
                                                                           .configuration = configuration};
WARPWRIGHT_KERNEL(ResidualLayerNormForward, "cuda.warp_row"_kernel) = {.needs = Needs::gpu,
                                                                       .dtypes = kGpuDTypes,
                                                                       .run = run_as_sum<forward>,
                                                                       .refuse = refuse,
                                                                       .configuration = configuration};

}  // namespace warpwright::ops
