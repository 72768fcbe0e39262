// The norm of all gradients together, and the factor that clips them.
//   norm = √(Σ over all tensors and elements of g²), 0 if there are none
//   scale = NaN if norm is not finite or if, with keep_nan, scale was NaN;
//           max_norm / norm if max_norm > 0 and norm > max_norm;
//           1 otherwise
// Squares are summed in fp64, in which squares of fp32 numbers neither overflow nor vanish. Blocks and their
// order are fixed, so that the bits do not depend on the threads. On a GPU they depend on its number of
// multiprocessors.
// Source: R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks",
// arXiv:1211.5063.
#pragma once

#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

struct GlobalNormProblem {
  std::int64_t elements = 0, tensors = 0;
  DType dtype = DType::f32;

  bool operator==(const GlobalNormProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GlobalNorm {
  using Problem = GlobalNormProblem;

  std::vector<Tensor> gradients;  // fp32 (or all fp64), contiguous, any shapes
  Tensor norm;                    // (1) of the gradients' dtype
  Tensor scale;                   // (1), optional: AdamW's gradient_scale (adamw/scalars.hpp)
  double max_norm = 0;            // 0: do not clip
  bool keep_nan = false;          // a scale that is NaN stays NaN: updates halt until the host clears it

  template <class F>
  void visit(F&& f) {
    for (Tensor& gradient : gradients) f("gradient", gradient, Access::read);
    f("norm", norm, Access::write);
    f("scale", scale, keep_nan ? Access::update : Access::write);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

const Op<GlobalNorm>& global_norm_op();

inline void global_norm(Context& context, const GlobalNorm& args) {
  call(context, global_norm_op(), args);
}

}  // namespace warpwright::ops
