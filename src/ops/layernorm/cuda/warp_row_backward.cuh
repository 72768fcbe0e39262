// cuda.warp_row backward for one combination of dtypes; false where a tensor begins between packs.
#pragma once

#include "ops/layernorm/cuda/backward_rows.cuh"
#include "ops/layernorm/cuda/element.cuh"

namespace warpwright::ops::layernorm::cuda {

template <class X, class P, class O>
bool warp_row_backward_as(const Context& context, const NormBackward& args) {
  const std::int64_t N = args.dx.shape[0];
  const int C = static_cast<int>(args.dx.shape[1]);
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
  a.N = N;
  a.C = C;
  a.centered = args.centered;
  a.streaming = leaves_caches(3 * args.dx.bytes(), context.device());
  if (!gpu::aligned16(a.dout, a.out, a.x, a.addend, a.weight, a.bias, a.dx)) return false;
  const bool from_out = static_cast<bool>(args.out), fp32_parameters = sizeof(P) != sizeof(X);
  const bool few = few_backward_kernels(fp32_parameters, from_out, sizeof(O) != sizeof(X));
  const RowShape shape = backward_shape(C, args.dx.dtype, few, from_out, context.device());
  const int count = warp_row_parts(N, shape, context.device());
  const BackwardLaunch launch{shape, count,
                              backward_shared_bytes({shape, args.dx.dtype, args.dout.dtype, from_out,
                                                     a.addend != nullptr, fp32_parameters})};
  const cudaStream_t stream = context.stream().get();
  if (count > 0 && from_out) launch_backward<true>(a, launch, stream);
  if (count > 0 && !from_out) launch_backward<false>(a, launch, stream);
  put_kept_sums(context, args, parts, count);
  add_column_sums(context, args, parts, count);
  return true;
}

// In files of their own, since they are many kernels.
bool warp_row_backward_f32(const Context& context, const NormBackward& args);
bool warp_row_backward_bf16(const Context& context, const NormBackward& args);
bool warp_row_backward_f16(const Context& context, const NormBackward& args);
bool warp_row_backward_mixed(const Context& context, const NormBackward& args);

}  // namespace warpwright::ops::layernorm::cuda
