// The residual connection and the layer normalization behind it, in one pass.
//   residual = x + y, rounded to its dtype
//   mean = Σresidual/C, var = Σ(residual − mean)²/C, rstd = 1/√(var + eps)
//   out = (residual − mean)·rstd·weight + bias
// The same bits as residual.forward and layernorm.forward one after the other where those take their sums in
// the same order; 4 passes of the tensor instead of 5. The backward is layernorm's: the gradient of residual
// is that of x and of y.
// Sources: ops/residual/residual.hpp, ops/layernorm/layernorm.hpp.
//
// dtypes of x, y, weight, bias, residual and out are one. Zero rows are fine; C ≥ 1.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct ResidualLayerNormForward {
  Tensor x, y;      // (N, C)
  Tensor weight;    // (C)
  Tensor bias;      // (C)
  Tensor residual;  // (N, C); may be x or y
  Tensor out;       // (N, C); may be x or y, but not residual
  Tensor mean;      // (N) fp32, optional
  Tensor rstd;      // (N) fp32, optional
  float eps = 1e-5f;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("y", y, Access::read);
    f("weight", weight, Access::read);
    f("bias", bias, Access::read);
    f("residual", residual, Access::write);
    f("out", out, Access::write);
    f("mean", mean, Access::write);
    f("rstd", rstd, Access::write);
  }
};

struct ResidualLayerNormProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;
  bool statistics = false;

  bool operator==(const ResidualLayerNormProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

const Op<ResidualLayerNormProblem, ResidualLayerNormForward>& residual_layernorm_forward_op();

inline void residual_layernorm_forward(Context& context, const ResidualLayerNormForward& args) {
  call(context, residual_layernorm_forward_op(), args);
}

}  // namespace warpwright::ops
