// Adds one set of gradients to another, element by element.
//   sum = first + addend
// The tensors of a sum have one shape. They do not overlap, but the sum may be its first term. All tensors
// are contiguous and of one dtype. Each element is rounded once, so every variant gives the same bits.
#pragma once

#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

struct GradientSumProblem {
  std::int64_t elements = 0, tensors = 0;
  DType dtype = DType::f32;

  bool operator==(const GradientSumProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GradientSum {
  using Problem = GradientSumProblem;

  std::vector<Tensor> sums;             // fp32 (or all fp64)
  std::vector<Tensor> firsts, addends;  // as many, of the same shapes

  template <class F>
  void visit(F&& f) {
    for (Tensor& first : firsts) f("first", first, Access::read);
    for (Tensor& addend : addends) f("addend", addend, Access::read);
    for (Tensor& sum : sums) f("sum", sum, Access::write);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

const Op<GradientSum>& gradient_sum_op();

inline void gradient_sum(Context& context, const GradientSum& args) {
  call(context, gradient_sum_op(), args);
}

}  // namespace warpwright::ops
