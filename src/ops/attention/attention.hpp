// Scaled dot-product attention over packed sequences, without a T×T tensor.
//   forward   out_i = Σ_j softmax_j(scale · q_i·k_j) v_j over the keys j that query i sees, lse_i = log Σ_j
//             exp(scale · q_i·k_j)
//   backward  P_ij = exp(scale · q_i·k_j − lse_i), D_i = dout_i·out_i, dS_ij = P_ij (dout_i·v_j − D_i), dq_i
//             = scale Σ_j dS_ij k_j, dk_j = scale Σ_i dS_ij q_i, dv_j = Σ_i P_ij dout_i   (all =)
// Source: A. Vaswani et al., arXiv:1706.03762; T. Dao et al., "FlashAttention", arXiv:2205.14135.
//
// Heads. KH divides NH: query head h sees key head h / (NH / KH). dk and dv of a key head sum over the query
// heads that see it. Source: J. Ainslie et al., arXiv:2305.13245.
//
// Sequences. Sequence s owns queries [cu_seqlens_q[s], cu_seqlens_q[s+1]) and keys [cu_seqlens_k[s],
// cu_seqlens_k[s+1]). Either range may be empty.
//
// Masks. Causal: of Lq queries and Lk keys, query i sees key j if j ≤ i + Lk − Lq. A few new queries are thus
// aligned with the end of a longer cache. With a window W > 0, it sees only the W last of these keys, j > i +
// Lk − Lq − W. The forward also takes a bias, which is added to the scaled scores, and a 0/1 mask for each
// sequence, whose zeros hide keys. If a query sees no key, its out is 0 and its lse is −inf.
//
// Layout. The head axis and the rows of q, k, v, out and their gradients may be strided (strides[2] is 1), so
// that the three parts of a qkv product are read and written in place. No output may overlap an input or
// another output. All tensors have one dtype, except lse, which is fp32 (fp64 for fp64 data). Throws Error if
// a tensor does not fit.
//
// Offsets. Every CPU variant checks cu_seqlens before it reads or writes anything else, and throws Error. On
// a GPU the caller checks them. There, wrong offsets give wrong results, but nothing outside the tensors is
// accessed. Also, the offsets may end before Nq and Nk, and the rows after the last sequence are then neither
// read nor written. A captured launch thus serves every batch that fits.
//
// A variant's results for a sequence do not depend on the other sequences in the batch. Only the bits of
// cuda.ladder_library may depend on their number. The choice of the variant may depend on them, unless
// batch_invariant is set.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

enum class Mask : std::uint8_t { none, causal };

// The storage of the rows of q, k and v, and in the backward of dout.
struct AttentionLayout {
  bool aligned = true;   // rows and heads begin at multiples of 16 bytes
  bool distinct = true;  // strides are positive, so no two rows or heads coincide
  bool adjacent = true;  // a row's heads are contiguous

  bool operator==(const AttentionLayout&) const = default;
};

struct AttentionForwardProblem {
  std::int64_t sequences = 0, Nq = 0, Nk = 0, NH = 0, KH = 0, HS = 0;
  DType dtype = DType::f32;
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  bool lse = false;
  bool bias = false, visible = false, batch_invariant = false;
  bool bias_each = false;                           // each sequence has a bias of its own
  std::int64_t visible_rows = 0, visible_cols = 0;  // Lq and Lk of a mask
  bool pairs_aligned = true;                        // rows of bias and visible begin at multiples of 16 bytes
  bool pairs_distinct = true;  // bias and visible have elements, in rows with positive strides
  std::int64_t max_seqlen = 0;
  bool positive_scale = true;
  AttentionLayout layout = {};

  bool operator==(const AttentionForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;  // for sequences of equal length; pairs that a causal mask hides do not count
  double bytes() const;
};

struct AttentionBackwardProblem {
  std::int64_t sequences = 0, Nq = 0, Nk = 0, NH = 0, KH = 0, HS = 0;
  DType dtype = DType::f32;
  Mask mask = Mask::causal;
  std::int64_t window = 0;
  std::int64_t max_seqlen = 0;
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
  Tensor k;             // (Nk, KH, HS)
  Tensor v;             // (Nk, KH, HS)
  Tensor cu_seqlens_q;  // (S + 1) int32, ascending from 0 to Nq
  Tensor cu_seqlens_k;  // (S + 1) int32, ascending from 0 to Nk
  Tensor out;           // (Nq, NH, HS)
  Tensor lse;           // (NH, Nq) fp32, optional
  float scale = 1;
  Mask mask = Mask::causal;
  std::int64_t window = 0;  // 0: none; otherwise the mask is causal
  // Optional, for query i and key j of a sequence; Lq, Lk ≥ every length. The last stride is 1.
  Tensor bias = {};     // (NH, Lq, Lk) for all sequences, or (S, NH, Lq, Lk)
  Tensor visible = {};  // (S, Lq, Lk) uint8: query i of sequence s sees key j if it is not 0
  // The bits of a sequence's results do not depend on the number of other sequences or on their rows.
  bool batch_invariant = false;
  std::int64_t max_seqlen = 0;  // no sequence has more queries or keys than this; 0: Nq and Nk

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
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct AttentionBackward {
  using Problem = AttentionBackwardProblem;
  Tensor q, k, v;                     // as in the forward
  Tensor cu_seqlens_q, cu_seqlens_k;  // as in the forward
  Tensor out;                         // (Nq, NH, HS), from the forward
  Tensor lse;                         // (NH, Nq) fp32 (fp64 for fp64), from the forward
  Tensor dout;                        // (Nq, NH, HS)
  Tensor dq;                          // (Nq, NH, HS), =
  Tensor dk, dv;                      // (Nk, KH, HS), =
  float scale = 1;
  Mask mask = Mask::causal;
  std::int64_t window = 0;      // as in the forward
  std::int64_t max_seqlen = 0;  // as in the forward

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
  Problem problem() const;  // throws Error if the tensors do not fit together
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
