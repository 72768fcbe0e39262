// Normalization by the root mean square over the last axis.
//   forward   rstd = 1/√(Σx²/C + eps), out = x·rstd·weight
//   backward  x̂ = x·rstd, g = dout·weight,
//             dx (= or +=) dsum + rstd·(g − x̂·Σ(g·x̂)/C), dweight (= or +=) Σ_rows dout·x̂
// Source: B. Zhang, R. Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467.
//
// Layer normalization without mean and bias, and computed by its kernels: ops/layernorm/layernorm.hpp says
// which dtypes go together, and what the backward from the output and kept_columns are.
#pragma once

#include "ops/layernorm/layernorm.hpp"

namespace warpwright::ops {

struct RMSNormForward {
  using Problem = NormForwardProblem;
  Tensor x;       // (N, C)
  Tensor weight;  // (C), optional
  Tensor out;     // (N, C); may be x
  Tensor rstd;    // (N) fp32 (fp64 beside fp64), optional
  double eps = 1e-5;
  Tensor kept_columns{}, kept{};  // (1 + K) int32, (N, K); optional

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("out", out, Access::write);
    f("rstd", rstd, Access::write);
    f("kept_columns", kept_columns, Access::write);
    f("kept", kept, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

struct RMSNormBackward {
  using Problem = NormBackwardProblem;
  Tensor dout;     // (N, C)
  Tensor x;        // (N, C); absent where out is given
  Tensor weight;   // (C), as in the forward
  Tensor rstd;     // (N) as the forward left it
  Tensor dx;       // (N, C), = or += by dx_store
  Tensor dweight;  // (C), = or += by dparameters_store; optional
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;
  Tensor dsum{};                  // (N, C) of x's dtype, optional; may be dx. Not beside +=
  Tensor out{};                   // (N, C): as the forward left it, in place of x
  Tensor kept_columns{}, kept{};  // beside out only, optional

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("rstd", rstd, Access::read);
    f("dx", dx, access_of(dx_store));
    f("dweight", dweight, access_of(dparameters_store));
    f("dsum", dsum, Access::read);
    f("out", out, Access::read);
    f("kept_columns", kept_columns, Access::read);
    f("kept", kept, Access::read);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<RMSNormForward>& rmsnorm_forward_op();
const Op<RMSNormBackward>& rmsnorm_backward_op();

inline void rmsnorm_forward(Context& context, const RMSNormForward& args) {
  call(context, rmsnorm_forward_op(), args);
}
inline void rmsnorm_backward(Context& context, const RMSNormBackward& args) {
  call(context, rmsnorm_backward_op(), args);
}

}  // namespace warpwright::ops
