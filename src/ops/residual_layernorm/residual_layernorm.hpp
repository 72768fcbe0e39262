// The residual connection and the layer normalization after it, in one pass.
//   residual = x + y, rounded to its dtype
//   mean = Σresidual/C, var = Σ(residual − mean)²/C, rstd = 1/√(var + eps)
//   out = (residual − mean)·rstd·weight + bias
// or, where rms, rstd = 1/√(Σresidual²/C + eps), out = residual·rstd·weight.
// The same bits as residual.forward and layernorm.forward one after the other where those take their sums in
// the same order; 4 passes of the tensor instead of 5. The backward is layernorm's or
// rmsnorm's, with `dsum` or dx += for the gradient that residual has from elsewhere: that of residual is that
// of x and of y. Computed by the kernels of ops/bias_residual_layernorm. Sources: ops/residual/residual.hpp,
// ops/layernorm/layernorm.hpp, which says what kept_columns are.
//
// dtypes of x, y, residual and out are one, and weight and bias have it too or, with 16 bits, fp32. Zero
// rows are fine; C ≥ 1.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct ResidualLayerNormProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;
  bool statistics = false, bias = true, rms = false, fp32_parameters = false;
  std::int64_t kept = -1;  // K; −1 without kept_columns
  bool aligned = true;     // rows and parameters begin at multiples of 16 bytes

  bool operator==(const ResidualLayerNormProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct ResidualLayerNormForward {
  using Problem = ResidualLayerNormProblem;
  Tensor x, y;      // (N, C)
  Tensor weight;    // (C)
  Tensor bias;      // (C), optional; absent where rms
  Tensor residual;  // (N, C); may be x or y
  Tensor out;       // (N, C); may be x or y, but not residual
  Tensor mean;      // (N) fp32 (fp64 with fp64), optional; absent where rms
  Tensor rstd;      // (N) likewise, optional
  double eps = 1e-5;
  bool rms = false;
  Tensor kept_columns{}, kept{};  // (1 + K) int32, (N, K): of residual; optional

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
    f("kept_columns", kept_columns, Access::write);
    f("kept", kept, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<ResidualLayerNormForward>& residual_layernorm_forward_op();

inline void residual_layernorm_forward(Context& context, const ResidualLayerNormForward& args) {
  call(context, residual_layernorm_forward_op(), args);
}

}  // namespace warpwright::ops
