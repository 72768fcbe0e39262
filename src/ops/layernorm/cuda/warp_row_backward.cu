#include "ops/layernorm/cuda/warp_row_backward.cuh"

namespace warpwright::ops::layernorm::cuda {

void warp_row_backward(const Context& context, const NormBackward& args) {
  const DType dtype = args.dx.dtype;
  const bool mixed = dtype != DType::f32 && args.weight && args.weight.dtype == DType::f32;
  const bool done = mixed                 ? warp_row_backward_mixed(context, args)
                    : dtype == DType::f32 ? warp_row_backward_f32(context, args)
                    : dtype == DType::f16 ? warp_row_backward_f16(context, args)
                                          : warp_row_backward_bf16(context, args);
  if (!done) two_pass_backward(context, args);
}

}  // namespace warpwright::ops::layernorm::cuda
