// The two parts in their plainest forms, one after the other: any row length, any alignment.
#include "ops/layernorm/kernels.hpp"
#include "ops/residual/kernels.hpp"
#include "ops/residual_layernorm/kernels.hpp"

namespace warpwright::ops::residual_layernorm::cuda {

void composed_forward(const Context& context, const ResidualLayerNormForward& a) {
  residual::cuda::packed_forward(context, {a.x, a.y, a.residual});
  layernorm::cuda::warp_loop_forward(context, bias_residual_layernorm::norm_of(as_sum(a), a.residual));
}

}  // namespace warpwright::ops::residual_layernorm::cuda
