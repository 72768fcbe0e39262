// The backward of self-attention over q and k that a rotation has made, and the backward of the rotation.
// ops/attention has the gradients, ops/rope the rotation, its positions and their errors. `separate` runs
// those operations' kernels one after the other. A fused kernel stores the gradients once, with the same
// bits.
//
// All tensors are self-attention's. dqk is (N, NH + KH, HS), with the heads of dq and then those of dk; its
// rows may be strided. A wrong position is reported as in ops/rope. On a GPU, dqk of its row is then
// arbitrary; on a CPU, dqk of all rows. The offsets end at N.
// Throws Error if an argument does not fit.
#pragma once

#include "ops/attention/attention.hpp"
#include "ops/rope/rope.hpp"

namespace warpwright::ops {

struct RotatedAttentionProblem {
  AttentionBackwardProblem attention;
  RopeProblem rope;
  DType dtype = DType::f32;

  bool operator==(const RotatedAttentionProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct RotatedAttentionBackward {
  using Problem = RotatedAttentionProblem;

  AttentionBackward attention;  // without dq and dk
  Tensor dqk;                   // (N, NH + KH, HS), =
  Tensor positions;             // (N) int32
  Tensor cos, sin;              // (P, R/2) fp32 (fp64 for fp64)
  Tensor wrong;                 // (1) int64
  RopeLayout layout = RopeLayout::half;

  template <class F>
  void visit(F&& f) {
    attention.visit(f);
    f("positions", positions, Access::read);
    f("cos", cos, Access::read);
    f("sin", sin, Access::read);
    f("dqk", dqk, Access::write);
    f("wrong", wrong, Access::update);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<RotatedAttentionBackward>& rotated_attention_backward_op();

inline void rotated_attention_backward(Context& context, const RotatedAttentionBackward& args) {
  call_with_positions(context, rotated_attention_backward_op(), args);
}

namespace rotated_attention {

// The two operations of a call.
AttentionBackward attention_of(const RotatedAttentionBackward& args);
RopeBackward rope_of(const RotatedAttentionBackward& args);

}  // namespace rotated_attention
}  // namespace warpwright::ops
