// The residual connection.
//   forward   out = a + b
//   backward  da += dout, db += dout
// A sum hands its gradient on unchanged, so a model that lets both branches read dout where it stands needs
// no backward at all; this one is for gradients that gather in places of their own, which must not overlap.
// dtypes are one; all tensors are contiguous, of any equal shape.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct ResidualProblem {
  std::int64_t elements = 0;
  DType dtype = DType::f32;
  bool backward = false;
  bool aligned = true;  // every tensor begins at a multiple of 16 bytes

  bool operator==(const ResidualProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct ResidualForward {
  using Problem = ResidualProblem;
  Tensor a, b;
  Tensor out;  // may be a or b

  template <class F>
  void visit(F&& f) {
    f("a", a, Access::read);
    f("b", b, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

struct ResidualBackward {
  using Problem = ResidualProblem;
  Tensor dout;
  Tensor da, db;  // +=

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("da", da, Access::update);
    f("db", db, Access::update);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<ResidualForward>& residual_forward_op();
const Op<ResidualBackward>& residual_backward_op();

inline void residual_forward(Context& context, const ResidualForward& args) {
  call(context, residual_forward_op(), args);
}
inline void residual_backward(Context& context, const ResidualBackward& args) {
  call(context, residual_backward_op(), args);
}

}  // namespace warpwright::ops
