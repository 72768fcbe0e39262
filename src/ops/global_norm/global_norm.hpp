// The norm of all gradients together, and the factor that clips them, in two operations.
//   squares  sums[b] = Σ g² over block b
//   norm     norm = √(Σ sums), 0 if there are none
//            scale = NaN if norm is not finite or if, with keep_nan, scale was NaN;
//                    max_norm / norm if max_norm > 0 and norm > max_norm;
//                    1 otherwise
// A block holds kSquaresBlock elements of one tensor, or its last ones. The blocks of several tensors follow
// each other. Who has only some of the blocks, such as a rank, computes their sums with the bits that they
// have in the whole.
//
// Squares are summed in fp64, in which squares of fp32 numbers neither overflow nor vanish. (The norm of fp64
// gradients beyond 1e150 overflows.) The order of all sums is fixed, so that the bits depend neither on the
// threads nor on the GPU. They do depend on whether a tensor begins at a multiple of 16 bytes.
// Source: R. Pascanu, T. Mikolov, Y. Bengio, "On the difficulty of training recurrent neural networks",
// arXiv:1211.5063.
#pragma once

#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

inline constexpr std::int64_t kSquaresBlock = 16384;

// The number of blocks of these tensors.
std::int64_t squares_blocks(const std::vector<Tensor>& tensors);

struct SquaresProblem {
  std::int64_t elements = 0, tensors = 0;
  DType dtype = DType::f32;

  bool operator==(const SquaresProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct Squares {
  using Problem = SquaresProblem;

  std::vector<Tensor> gradients;  // fp32 (or all fp64), contiguous, any shapes
  Tensor sums;                    // (blocks) fp64

  template <class F>
  void visit(F&& f) {
    for (Tensor& gradient : gradients) f("gradient", gradient, Access::read);
    f("sums", sums, Access::write);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

struct GlobalNormProblem {
  std::int64_t blocks = 0;
  DType dtype = DType::f32;  // of the norm

  bool operator==(const GlobalNormProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct GlobalNorm {
  using Problem = GlobalNormProblem;

  Tensor sums;            // (blocks) fp64
  Tensor norm;            // (1) fp32 or fp64
  Tensor scale;           // (1), optional: AdamW's gradient_scale (adamw/scalars.hpp)
  double max_norm = 0;    // 0: do not clip
  bool keep_nan = false;  // a scale that is NaN stays NaN: updates halt until the host clears it

  template <class F>
  void visit(F&& f) {
    f("sums", sums, Access::read);
    f("norm", norm, Access::write);
    f("scale", scale, keep_nan ? Access::update : Access::write);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

const Op<Squares>& squares_op();
const Op<GlobalNorm>& global_norm_op();

inline void squares(Context& context, const Squares& args) {
  call(context, squares_op(), args);
}
inline void global_norm(Context& context, const GlobalNorm& args) {
  call(context, global_norm_op(), args);
}

}  // namespace warpwright::ops
