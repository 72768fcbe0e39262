#include "ops/layernorm/cuda/warp_row_backward.cuh"

namespace warpwright::ops::layernorm::cuda {

void warp_row_backward_f32(const Context& context, const NormBackward& args, const BackwardLaunch& launch) {
  warp_row_backward_as<float, float, float>(context, args, launch);
}

}  // namespace warpwright::ops::layernorm::cuda
