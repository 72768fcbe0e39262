// RMS normalization of each head of q and k by itself (QK norm), with one weight for all heads of q and one
// for all heads of k.
//   forward   rstd[n, h] = 1/√(Σ_i x[n, h, i]²/HS + eps), out[n, h, i] = x[n, h, i]·rstd[n, h]·w[i]
//   backward  x̂ = x·rstd, g = dout·w
//             dx = rstd·(g − x̂·Σ_i(g·x̂)/HS)   (=)
//             dq_weight (= or +=) Σ dout·x̂ over all rows and the heads of q, dk_weight likewise
// with w = q_weight for the first `q_heads` heads and w = k_weight for the others.
// Sources: A. Henry et al., "Query-Key Normalization for Transformers", arXiv:2010.04245; B. Zhang, R.
// Sennrich, "Root Mean Square Layer Normalization", arXiv:1910.07467; as here in A. Yang et al., "Qwen3
// Technical Report", arXiv:2505.09388.
//
// x, out, dout and dx are (N, NH, HS) of one dtype, with HS ≤ 256. Their rows and heads may be strided; the
// last stride is 1. out may be x and dx may be dout, with the same strides; no other arguments may overlap.
// Weights, their gradients, rstd and the arithmetic are fp32 (fp64 for fp64), and an element is rounded once.
//
// If one product computes q, k and v, the heads of q and k are adjacent in its rows: x is the product's first
// NH = heads of q + heads of k heads, with the row stride of the product.
//
// Throws Error if an argument does not fit.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct HeadNormProblem {
  std::int64_t N = 0, NH = 0, HS = 0;
  std::int64_t q_heads = 0;
  DType dtype = DType::f32;
  bool in_place = false;
  bool aligned = true;  // every head and every weight begins at a multiple of 16 bytes

  bool operator==(const HeadNormProblem&) const = default;
  std::string describe() const;
};

struct HeadNormForwardProblem : HeadNormProblem {
  bool rstd = false;

  bool operator==(const HeadNormForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct HeadNormBackwardProblem : HeadNormProblem {
  Store dweights_store = Store::assign;

  bool operator==(const HeadNormBackwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct HeadNormForward {
  using Problem = HeadNormForwardProblem;

  Tensor x;                   // (N, NH, HS)
  Tensor q_weight, k_weight;  // (HS)
  Tensor out;                 // (N, NH, HS); may be x
  Tensor rstd{};              // (N, NH), optional: for the backward
  std::int64_t q_heads = 0;   // of the NH heads; at least one, and at least one is left for k
  double eps = 1e-6;

  template <class F>
  void visit(F&& f) {
    f("x", x, Access::read);
    f("q_weight", q_weight, Access::read);
    f("k_weight", k_weight, Access::read);
    f("out", out, Access::write);
    f("rstd", rstd, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct HeadNormBackward {
  using Problem = HeadNormBackwardProblem;

  Tensor dout;                  // (N, NH, HS)
  Tensor x;                     // (N, NH, HS), the forward's
  Tensor q_weight, k_weight;    // (HS), the forward's
  Tensor rstd;                  // (N, NH), from the forward
  Tensor dx;                    // (N, NH, HS), =; may be dout
  Tensor dq_weight, dk_weight;  // (HS), = or += by dweights_store
  std::int64_t q_heads = 0;     // as in the forward
  Store dweights_store = Store::assign;

  template <class F>
  void visit(F&& f) {
    f("dout", dout, Access::read);
    f("x", x, Access::read);
    f("q_weight", q_weight, Access::read);
    f("k_weight", k_weight, Access::read);
    f("rstd", rstd, Access::read);
    f("dx", dx, Access::write);
    f("dq_weight", dq_weight, access_of(dweights_store));
    f("dk_weight", dk_weight, access_of(dweights_store));
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<HeadNormForward>& head_norm_forward_op();
const Op<HeadNormBackward>& head_norm_backward_op();

inline void head_norm_forward(Context& context, const HeadNormForward& args) {
  call(context, head_norm_forward_op(), args);
}
inline void head_norm_backward(Context& context, const HeadNormBackward& args) {
  call(context, head_norm_backward_op(), args);
}

}  // namespace warpwright::ops
