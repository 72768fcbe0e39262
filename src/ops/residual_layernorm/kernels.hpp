// The arguments as ops/bias_residual_layernorm's kernels take them.
#pragma once

#include "ops/bias_residual_layernorm/kernels.hpp"
#include "ops/residual_layernorm/residual_layernorm.hpp"

namespace warpwright::ops::residual_layernorm {

inline bias_residual_layernorm::SumForward as_sum(const ResidualLayerNormForward& a) {
  return {{a.x, {}, a.y, a.weight, a.bias, a.residual, a.out, a.mean, a.rstd, a.eps, a.rms},
          a.kept_columns,
          a.kept};
}

void forward_reference(const Context& context, const ResidualLayerNormForward& args);

}  // namespace warpwright::ops::residual_layernorm
