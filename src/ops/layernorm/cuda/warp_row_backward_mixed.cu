// fp32 parameters beside x of 16 bits.
#include "ops/layernorm/cuda/warp_row_backward.cuh"

namespace warpwright::ops::layernorm::cuda {

bool warp_row_backward_mixed(const Context& context, const NormBackward& args) {
  const bool wide_out = args.dout.dtype == DType::f32;
  if (args.dx.dtype == DType::bf16) {
    return wide_out ? warp_row_backward_as<__nv_bfloat16, float, float>(context, args)
                    : warp_row_backward_as<__nv_bfloat16, float, __nv_bfloat16>(context, args);
  }
  return wide_out ? warp_row_backward_as<__half, float, float>(context, args)
                  : warp_row_backward_as<__half, float, __half>(context, args);
}

}  // namespace warpwright::ops::layernorm::cuda
