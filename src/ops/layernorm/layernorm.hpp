// Layer normalization over the last axis.
//   forward   mean = Σx/C, var = Σ(x − mean)²/C, rstd = 1/√(var + eps), out = (x − mean)·rstd·weight + bias
//   backward  x̂ = (x − mean)·rstd, g = dout·weight,
//             dx (= or +=) rstd·(g − Σg/C − x̂·Σ(g·x̂)/C), dweight (= or +=) Σ_rows dout·x̂, dbias likewise
//             Σ_rows dout
// Source: J. L. Ba, J. R. Kiros, G. E. Hinton, "Layer Normalization", arXiv:1607.06450.
//
// Statistics by two passes, in fp32 (fp64 for fp64 data). dtypes of x, out, dout, dx, weight and bias are
// one. Zero rows are fine; C ≥ 1.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct LayerNormForward {
  Tensor x;       // (N, C)
  Tensor weight;  // (C)
  Tensor bias;    // (C)
  Tensor out;     // (N, C); may be x
  Tensor mean;    // (N) fp32, optional
  Tensor rstd;    // (N) fp32, optional
  float eps = 1e-5f;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("bias", bias, Access::read);
    f("out", out, Access::write);
    f("mean", mean, Access::write);
    f("rstd", rstd, Access::write);
  }
};

struct LayerNormBackward {
  Tensor dout;     // (N, C)
  Tensor x;        // (N, C)
  Tensor weight;   // (C)
  Tensor mean;     // (N) fp32, as the forward left it
  Tensor rstd;     // (N) fp32
  Tensor dx;       // (N, C), = or += by dx_store
  Tensor dweight;  // (C) fp32, = or += by dparameters_store
  Tensor dbias;    // (C) fp32, likewise
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("weight", weight, Access::read);
    f("mean", mean, Access::read);
    f("rstd", rstd, Access::read);
    f("dx", dx, access_of(dx_store));
    f("dweight", dweight, access_of(dparameters_store));
    f("dbias", dbias, access_of(dparameters_store));
  }
};

struct LayerNormForwardProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;
  bool statistics = false;

  bool operator==(const LayerNormForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct LayerNormBackwardProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;
  Store dx_store = Store::assign;
  Store dparameters_store = Store::add;

  bool operator==(const LayerNormBackwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

const Op<LayerNormForwardProblem, LayerNormForward>& layernorm_forward_op();
const Op<LayerNormBackwardProblem, LayerNormBackward>& layernorm_backward_op();

inline void layernorm_forward(Context& context, const LayerNormForward& args) {
  call(context, layernorm_forward_op(), args);
}
inline void layernorm_backward(Context& context, const LayerNormBackward& args) {
  call(context, layernorm_backward_op(), args);
}

}  // namespace warpwright::ops
