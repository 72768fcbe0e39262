// Token embedding, with or without a position embedding.
//   forward   out[n] = wte[tokens[n]] + wpe[positions[n]]
//   backward  dwte[tokens[n]] += dout[n], dwpe[positions[n]] += dout[n], summed in a fixed order (but in any
//             order by cuda.ladder_atomics, which runs only if it is forced)
// Source: A. Radford et al., "Language Models are Unsupervised Multitask Learners", 2019 (GPT-2).
//
// With Store::assign (=), every row of a gradient starts from 0. With Store::add (+=), rows that no token or
// position selects are not touched.
//
// positions, wpe and dwpe are optional: without them, the second terms are missing.
//
// wte, wpe, out and dout have one dtype. All tensors are contiguous. Throws Error if a tensor does not fit.
// The caller checks the ids: 0 ≤ tokens[n] < V, 0 ≤ positions[n] < P.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct EmbeddingForwardProblem {
  std::int64_t N = 0, C = 0, V = 0;
  std::int64_t P = 0;  // 0: no positions
  DType dtype = DType::f32;
  bool aligned = true;  // the tensors that are moved in packs begin at multiples of 16 bytes

  bool operator==(const EmbeddingForwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct EmbeddingBackwardProblem {
  std::int64_t N = 0, C = 0, V = 0;
  std::int64_t P = 0;  // 0: no positions
  DType dtype = DType::f32;
  Store dwte_store = Store::add;
  Store dwpe_store = Store::add;
  bool aligned = true;  // the tensors that are moved in packs begin at multiples of 16 bytes

  bool operator==(const EmbeddingBackwardProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct EmbeddingForward {
  using Problem = EmbeddingForwardProblem;

  Tensor tokens;     // (N) int32
  Tensor positions;  // (N) int32, optional
  Tensor wte;        // (V, C)
  Tensor wpe;        // (P, C), given if positions are
  Tensor out;        // (N, C)

  template <class F>
  void visit(F&& f) {
    f("tokens", tokens, Access::read);
    f("positions", positions, Access::read);
    f("wte", wte, Access::read);
    f("wpe", wpe, Access::read);
    f("out", out, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

struct EmbeddingBackward {
  using Problem = EmbeddingBackwardProblem;

  Tensor tokens;     // (N) int32
  Tensor positions;  // (N) int32, optional
  Tensor dout;       // (N, C)
  Tensor dwte;       // (V, C) fp32 (fp64 for fp64 dout); = or += by dwte_store
  Tensor dwpe;       // (P, C) fp32 (fp64 for fp64 dout), given if positions are; = or += by dwpe_store
  Store dwte_store = Store::add;
  Store dwpe_store = Store::add;

  template <class F>
  void visit(F&& f) {
    f("tokens", tokens, Access::read);
    f("positions", positions, Access::read);
    f("dout", dout, Access::read);
    f("dwte", dwte, access_of(dwte_store));
    f("dwpe", dwpe, access_of(dwpe_store));
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<EmbeddingForward>& embedding_forward_op();
const Op<EmbeddingBackward>& embedding_backward_op();

inline void embedding_forward(Context& context, const EmbeddingForward& args) {
  call(context, embedding_forward_op(), args);
}
inline void embedding_backward(Context& context, const EmbeddingBackward& args) {
  call(context, embedding_backward_op(), args);
}

}  // namespace warpwright::ops
