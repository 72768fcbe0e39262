// Adds one set of gradients to another.
//   sum += addend    for each pair of tensors, element by element
// Tensors of a pair have one shape and do not overlap; all tensors are contiguous and of one dtype. Each
// element is rounded once, so every variant gives the same bits.
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

  std::vector<Tensor> sums;     // fp32 (or all fp64)
  std::vector<Tensor> addends;  // as many, of the same shapes

  template <class F>
  void visit(F&& f) {
    for (Tensor& sum : sums) f("sum", sum, Access::update);
    for (Tensor& addend : addends) f("addend", addend, Access::read);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

const Op<GradientSum>& gradient_sum_op();

inline void gradient_sum(Context& context, const GradientSum& args) {
  call(context, gradient_sum_op(), args);
}

}  // namespace warpwright::ops
