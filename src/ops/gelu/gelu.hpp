// GELU as a separate operation. Matmul's epilogues are the fused form.
//   forward   out = gelu(x)               out may be x
//   backward  dx = dout · gelu'(x)   (=)  dx may be dout
// activation is gelu_tanh or gelu_erf; ops/activation.hpp has the formulas and their source. All tensors have
// one shape, of any rank, and one dtype; all are contiguous. Throws Error if an argument does not fit.
#pragma once

#include "ops/activation.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

struct GeluProblem {
  std::int64_t elements = 0;
  DType dtype = DType::f32;
  Activation activation = Activation::gelu_tanh;
  bool backward = false;
  bool aligned = true;  // the tensors that are moved in packs begin at multiples of 16 bytes

  bool operator==(const GeluProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GeluForward {
  using Problem = GeluProblem;

  Tensor x;
  Tensor out;  // may be x
  Activation activation = Activation::gelu_tanh;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct GeluBackward {
  using Problem = GeluProblem;

  Tensor dout;
  Tensor x;
  Tensor dx;  // may be dout
  Activation activation = Activation::gelu_tanh;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("dx", dx, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<GeluForward>& gelu_forward_op();
const Op<GeluBackward>& gelu_backward_op();

inline void gelu_forward(Context& context, const GeluForward& args) {
  call(context, gelu_forward_op(), args);
}
inline void gelu_backward(Context& context, const GeluBackward& args) {
  call(context, gelu_backward_op(), args);
}

}  // namespace warpwright::ops
