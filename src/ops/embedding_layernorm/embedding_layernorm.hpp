// BERT's embedding and the layer normalization after it.
//   x = word[tokens[n]] + position[positions[n]] + type[types[n]]
//   out[n] = (x − mean)·rstd·weight + bias     with mean and rstd of x, as in ops/norm
// Source: J. Devlin et al., "BERT", arXiv:1810.04805. There is no backward.
//
// Sums and statistics are fp32 (fp64 for fp64 data); only out is rounded to its dtype. word, position, type,
// weight, bias and out have one dtype. All tensors are contiguous. Throws Error if a tensor does not fit. The
// caller checks the ids.
//
// If `rows` is given, only the first min(N, rows[0]) rows of out are written, and the ids after them are not
// read. A captured launch thus serves any batch that fits.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct EmbeddingLayerNormProblem {
  std::int64_t N = 0, C = 0, V = 0, P = 0;
  DType dtype = DType::f32;
  bool types = false, rows = false;
  bool aligned = true;  // the tables, the parameters and out begin at multiples of 16 bytes

  bool operator==(const EmbeddingLayerNormProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct EmbeddingLayerNormForward {
  using Problem = EmbeddingLayerNormProblem;
  Tensor tokens;     // (N) int32, below V
  Tensor positions;  // (N) int32, below P
  Tensor types;      // (N) int32, below K; optional, with `type`
  Tensor word;       // (V, C)
  Tensor position;   // (P, C)
  Tensor type;       // (K, C)
  Tensor weight;     // (C)
  Tensor bias;       // (C)
  Tensor out;        // (N, C)
  Tensor rows;       // (1) int32, optional
  float eps = 1e-12f;

  template <class F>
  void visit(F&& f) {
    f("tokens", tokens, Access::read);
    f("positions", positions, Access::read);
    f("types", types, Access::read);
    f("word", word, Access::read);
    f("position", position, Access::read);
    f("type", type, Access::read);
    f("weight", weight, Access::read);
    f("bias", bias, Access::read);
    f("out", out, Access::write);
    f("rows", rows, Access::read);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<EmbeddingLayerNormForward>& embedding_layernorm_forward_op();

inline void embedding_layernorm_forward(Context& context, const EmbeddingLayerNormForward& args) {
  call(context, embedding_layernorm_forward_op(), args);
}

}  // namespace warpwright::ops
