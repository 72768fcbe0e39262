// Scaled dot-product attention over packed sequences, without a T×T tensor.
//   forward   out_i = Σ_j softmax_j(scale · q_i·k_j) v_j over the keys j that query i sees,
//             lse_i = log Σ_j exp(scale · q_i·k_j)
//   backward  P_ij = exp(scale · q_i·k_j − lse_i), D_i = dout_i·out_i, dS_ij = P_ij (dout_i·v_j − D_i),
//             dq_i = scale Σ_j dS_ij k_j, dk_j = scale Σ_i dS_ij q_i, dv_j = Σ_i P_ij dout_i   (all =)
// Source: A. Vaswani et al., arXiv:1706.03762; T. Dao et al., "FlashAttention", arXiv:2205.14135.
//
// Sequence s owns queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and keys [cu_seqlens_k[s], cu_seqlens_k[s+1]),
// either of which may be empty. Causal: query i of Lq sees key j of Lk where j ≤ i + Lk − Lq, so that a short
// run of new queries sits at the end of a longer cache. The forward may also be given a bias, which is added
// to the scaled scores, and a 0/1 mask for each sequence, whose zeros hide keys. A query that sees no key
// gives out 0 and lse −inf. The head axis and the rows of q, k, v, out and their gradients may be strided
// (strides[2] is 1), so that the three parts of a qkv product are read and written where they stand; no
// output may overlap an input or another output. dtypes are one; lse is fp32 (fp64 beside fp64). Every CPU
// variant checks cu_seqlens before it reads or writes anything else (Error); on a GPU they are the caller's
// to check, and wrong ones give wrong results but touch nothing outside the tensors; there they may end
// before Nq and Nk, and what stands behind is neither read nor written, so that a launch captured once serves
// every batch that fits. A variant's results for a sequence do not depend on what is packed beside it; which
// variant is chosen may, unless a call asks for batch_invariant.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

enum class Mask : std::uint8_t { none, causal };

// How the rows of q, k and v, and in the backward of dout, are stored.
struct AttentionLayout {
  bool aligned = true;   // rows and heads begin at multiples of 16 bytes
  bool distinct = true;  // strides are positive: no row or head is another one
  bool adjacent = true;  // a row's heads lie side by side

  bool operator==(const AttentionLayout&) const = default;
};

struct AttentionForwardProblem {
  std::int64_t sequences = 0, Nq = 0, Nk = 0, NH = 0, HS = 0;
  DType dtype = DType::f32;
  Mask mask = Mask::causal;
  bool lse = false;
  bool bias = false, visible = false, batch_invariant = false;
  std::int64_t max_seqlen = 0;
  bool positive_scale = true;
  AttentionLayout layout = {};

  bool operator==(const AttentionForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;  // of sequences of equal length; what a causal mask hides does not count
  double bytes() const;
};

struct AttentionBackwardProblem {
  std::int64_t sequences = 0, Nq = 0, Nk = 0, NH = 0, HS = 0;
  DType dtype = DType::f32;
  Mask mask = Mask::causal;
  bool positive_scale = true;
  AttentionLayout layout = {};

  bool operator==(const AttentionBackwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct AttentionForward {
  using Problem = AttentionForwardProblem;
  Tensor q;             // (Nq, NH, HS)
  Tensor k;             // (Nk, NH, HS)
  Tensor v;             // (Nk, NH, HS)
  Tensor cu_seqlens_q;  // (S + 1) int32, ascending from 0 to Nq
  Tensor cu_seqlens_k;  // (S + 1) int32, ascending from 0 to Nk
  Tensor out;           // (Nq, NH, HS)
  Tensor lse;           // (NH, Nq) fp32, optional
  float scale = 1;
  Mask mask = Mask::causal;
  Tensor bias = {};     // (NH, Lq, Lk), optional: of query i and key j of any sequence; no sequence is longer
  Tensor visible = {};  // (S, Lq, Lk) uint8, optional: query i of sequence s sees key j where it is not 0
  bool batch_invariant =
      false;  // a sequence's bits do not depend on how many others there are, nor their rows
  std::int64_t max_seqlen = 0;  // no sequence has more queries or more keys; 0: Nq, Nk

  template <class F>
  void visit(F&& f) {
    f("q", q, Access::read);
    f("k", k, Access::read);
    f("v", v, Access::read);
    f("cu_seqlens_q", cu_seqlens_q, Access::read);
    f("cu_seqlens_k", cu_seqlens_k, Access::read);
    f("bias", bias, Access::read);
    f("visible", visible, Access::read);
    f("out", out, Access::write);
    f("lse", lse, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

struct AttentionBackward {
  using Problem = AttentionBackwardProblem;
  Tensor q, k, v;                     // as in the forward
  Tensor cu_seqlens_q, cu_seqlens_k;  // as in the forward
  Tensor out;                         // (Nq, NH, HS), as the forward left it
  Tensor lse;                         // (NH, Nq) fp32, as the forward left it
  Tensor dout;                        // (Nq, NH, HS)
  Tensor dq;                          // (Nq, NH, HS), =
  Tensor dk, dv;                      // (Nk, NH, HS), =
  float scale = 1;
  Mask mask = Mask::causal;

  template <class F>
  void visit(F&& f) {
    f("q", q, Access::read);
    f("k", k, Access::read);
    f("v", v, Access::read);
    f("cu_seqlens_q", cu_seqlens_q, Access::read);
    f("cu_seqlens_k", cu_seqlens_k, Access::read);
    f("out", out, Access::read);
    f("lse", lse, Access::read);
    f("dout", dout, Access::read);
    f("dq", dq, Access::write);
    f("dk", dk, Access::write);
    f("dv", dv, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<AttentionForward>& attention_forward_op();
const Op<AttentionBackward>& attention_backward_op();

inline void attention_forward(Context& context, const AttentionForward& args) {
  call(context, attention_forward_op(), args);
}
inline void attention_backward(Context& context, const AttentionBackward& args) {
  call(context, attention_backward_op(), args);
}

}  // namespace warpwright::ops
