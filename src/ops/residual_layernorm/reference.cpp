// The oracle: the parts' oracles, one after the other.
#include "ops/residual/kernels.hpp"
#include "ops/residual_layernorm/kernels.hpp"

namespace warpwright::ops::residual_layernorm {

void forward_reference(const Context& context, const ResidualLayerNormForward& a) {
  residual::forward_reference(context, {a.x, a.y, a.residual});
  layernorm::forward_reference(context, bias_residual_layernorm::norm_of(as_sum(a), a.residual));
}

}  // namespace warpwright::ops::residual_layernorm
