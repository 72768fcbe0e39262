// The oracle: the parts' oracles, one after the other.
#include "ops/layernorm/kernels.hpp"
#include "ops/residual/kernels.hpp"
#include "ops/residual_layernorm/kernels.hpp"

namespace warpwright::ops::residual_layernorm {

void forward_reference(const Context& context, const ResidualLayerNormForward& a) {
  residual::forward_reference(context, {a.x, a.y, a.residual});
  layernorm::forward_reference(context, {a.residual, a.weight, a.bias, a.out, a.mean, a.rstd, a.eps});
}

}  // namespace warpwright::ops::residual_layernorm
