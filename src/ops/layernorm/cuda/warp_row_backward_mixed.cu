// fp32 parameters with x of 16 bits.
#include "ops/layernorm/cuda/warp_row_backward.cuh"

namespace warpwright::ops::layernorm::cuda {

void warp_row_backward_mixed(const Context& context, const NormBackward& args, const BackwardLaunch& launch) {
  const bool wide_out = args.dout.dtype == DType::f32;
  if (args.dx.dtype == DType::bf16) {
    wide_out ? warp_row_backward_as<__nv_bfloat16, float, float>(context, args, launch)
             : warp_row_backward_as<__nv_bfloat16, float, __nv_bfloat16>(context, args, launch);
  } else {
    wide_out ? warp_row_backward_as<__half, float, float>(context, args, launch)
             : warp_row_backward_as<__half, float, __half>(context, args, launch);
  }
}

}  // namespace warpwright::ops::layernorm::cuda
