// The end of a linear layer of a post-norm encoder, in one pass: its bias, the residual connection and a
// normalization.
//   sum = x + x_bias + residual
//   out = norm(sum)·weight + bias, by mean and deviation (ops/layernorm) or by the root mean square
//   (ops/rmsnorm)
// The additions are fp32 and rounded once: where `sum` is asked for, the statistics are those of the stored
// sum, as if the steps ran one after the other; else those of the unrounded one. Source: Y. Zhai et al.,
// "ByteTransformer", IPDPS 2023, arXiv:2210.03052, section III-C.
//
// Forward only: its backward is layernorm's or rmsnorm's on `sum`, whose dx is the gradient of x and of
// residual, and its column sums that of x_bias. dtypes of all tensors but the statistics are one, or weight
// and bias are fp32 with 16 bits. Zero rows are fine; C ≥ 1. Where `rows` is given, only the first min(N,
// rows[0]) rows are asked for, and the others of what is written then hold anything: a captured launch serves
// any batch that fits.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct BiasResidualLayerNormProblem {
  std::int64_t N = 0, C = 0;
  DType dtype = DType::f32;
  bool x_bias = true, bias = true, sum = false, statistics = false, rms = false, fp32_parameters = false;
  bool aligned = true;  // rows and parameters begin at multiples of 16 bytes

  bool operator==(const BiasResidualLayerNormProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct BiasResidualLayerNormForward {
  using Problem = BiasResidualLayerNormProblem;
  Tensor x;         // (N, C)
  Tensor x_bias;    // (C), optional
  Tensor residual;  // (N, C)
  Tensor weight;    // (C)
  Tensor bias;      // (C), optional; absent where rms
  Tensor sum;       // (N, C), optional; may be x or residual
  Tensor out;       // (N, C); may be x or residual, but not sum
  Tensor mean;      // (N) fp32 (fp64 with fp64), optional; absent where rms
  Tensor rstd;      // (N) likewise, optional
  double eps = 1e-5;
  bool rms = false;
  Tensor rows = {};  // (1) int32, optional

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("x_bias", x_bias, Access::read);
    f("residual", residual, Access::read);
    f("weight", weight, Access::read);
    f("bias", bias, Access::read);
    f("sum", sum, Access::write);
    f("out", out, Access::write);
    f("mean", mean, Access::write);
    f("rstd", rstd, Access::write);
    f("rows", rows, Access::read);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<BiasResidualLayerNormForward>& bias_residual_layernorm_forward_op();

inline void bias_residual_layernorm_forward(Context& context, const BiasResidualLayerNormForward& args) {
  call(context, bias_residual_layernorm_forward_op(), args);
}

}  // namespace warpwright::ops
