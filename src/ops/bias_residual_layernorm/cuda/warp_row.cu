// Bias, residual connection and normalization on a GPU with every row in registers: the kernel of
// ops/layernorm (rows.cuh), which adds up the rows as it reads them. Memory-bound: 3 passes of the tensor (x,
// residual, out), 4 where the sum is stored.
#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/layernorm/cuda/element.cuh"
#include "ops/layernorm/cuda/lost_columns.cuh"
#include "ops/layernorm/cuda/rows.cuh"

namespace warpwright::ops::bias_residual_layernorm::cuda {
namespace {

using namespace layernorm::cuda;

template <class T, class P>
bool run(const Context& context, const SumForward& args, NormTypes<T, P, T>) {
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
  if (!gpu::aligned16(a.x, a.x_bias, a.y, a.weight, a.bias, a.sum, a.out)) return false;
  const RowShape shape = forward_shape(C, args.x.dtype, true);
  constexpr const char* kName = "sum and norm forward cuda.warp_row";
  a.sum ? launch_forward<true, true>(a, shape, context, kName)
        : launch_forward<true, false>(a, shape, context, kName);
  return true;
}

}  // namespace

void warp_row_forward(const Context& context, const SumForward& args) {
  bool done = false;
  visit_norm_types(args.x.dtype, args.weight, args.x.dtype,
                   [&]<class X, class P, class O>(NormTypes<X, P, O> types) {
                     if constexpr (!std::is_same_v<X, double> && std::is_same_v<X, O>)
                       done = run(context, args, types);
                   });
  if (!done) return warp_loop_forward(context, args);
  keep_lost_columns(context, norm_of(args, args.sum), args.sum);
}

}  // namespace warpwright::ops::bias_residual_layernorm::cuda
