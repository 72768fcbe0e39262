#include "ops/layernorm/cuda/warp_row_backward.cuh"

namespace warpwright::ops::layernorm::cuda {

bool warp_row_backward_f32(const Context& context, const NormBackward& args) {
  return warp_row_backward_as<float, float, float>(context, args);
}

}  // namespace warpwright::ops::layernorm::cuda
