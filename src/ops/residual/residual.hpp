// The residual connection.
//   forward   out = a + b                    out may be a or b
//   backward  da += dout, db += dout         (+=)
// All tensors have one shape, of any rank, and one dtype; all are contiguous. dout, da and db do not overlap.
// Throws Error if a tensor does not fit.
//
// The gradient of a sum is dout itself, so a model whose branches can both read dout needs no backward. This
// backward is for gradients that are accumulated in separate tensors.
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
  Problem problem() const;  // throws Error if the tensors do not fit together
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
  Problem problem() const;  // throws Error if the tensors do not fit together
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
