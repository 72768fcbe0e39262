// cuda.warp_row backward for one combination of dtypes.
#pragma once

#include "ops/layernorm/cuda/backward_rows.cuh"
#include "ops/layernorm/cuda/element.cuh"

namespace warpwright::ops::layernorm::cuda {

template <class X, class P, class O>
void warp_row_backward_as(const Context& context, const NormBackward& args, const BackwardLaunch& launch) {
  auto* parts = static_cast<float*>(context.scratch());
  BackwardRows<X, P, O> a{};
  a.dout = data_of<const O>(args.dout);
  a.out = data_of<const O>(args.out);
  a.x = data_of<const X>(args.x);
  a.addend = args.dx_store == Store::add ? data_of<const X>(args.dx) : data_of<const X>(args.dsum);
  a.weight = data_of<const P>(args.weight);
  a.bias = data_of<const P>(args.bias);
  a.mean = args.centered ? data_of<const float>(args.mean) : nullptr;
  a.rstd = data_of<const float>(args.rstd);
  a.dx = data_of<X>(args.dx);
  a.parts = parts;
  a.kept = kept_columns_of<X>(args.kept_columns, args.kept);
  a.lost = LostRule<float>::of(args.dout.dtype);
  a.N = args.dx.shape[0];
  a.C = static_cast<int>(args.dx.shape[1]);
  a.centered = args.centered;
  a.streaming = leaves_caches(3 * args.dx.bytes(), context.device());
  const cudaStream_t stream = context.stream().get();
  if (launch.parts > 0) {
    args.out ? launch_backward<true>(a, launch, stream) : launch_backward<false>(a, launch, stream);
  }
  put_kept_sums(context, args, parts, launch.parts);
  add_column_sums(context, args, parts, launch.parts);
}

// In files of their own, since they are many kernels.
void warp_row_backward_f32(const Context& context, const NormBackward& args, const BackwardLaunch& launch);
void warp_row_backward_bf16(const Context& context, const NormBackward& args, const BackwardLaunch& launch);
void warp_row_backward_f16(const Context& context, const NormBackward& args, const BackwardLaunch& launch);
void warp_row_backward_mixed(const Context& context, const NormBackward& args, const BackwardLaunch& launch);

}  // namespace warpwright::ops::layernorm::cuda
