// The layers of a BERT-family encoder, one after the other, over packed sequences: for batches so small that
// the launches of their operations would take longer than their work.
//   for each layer   qkv = h·Wqkvᵀ + bqkv,   a = attention(qkv, without a mask; scale 1/√HS),
//                    h = norm(h + a·Wprojᵀ + bproj),
//                    h = norm(h + act(h·Wfcᵀ + bfc)·Wfcprojᵀ + bfcproj)
// with norm(x) = (x − mean)·rstd·weight + bias as in ops/layernorm, and attention as in ops/attention.
// Source: J. Devlin et al., "BERT", arXiv:1810.04805.
//
// Sequence s owns rows [cu_seqlens[s], cu_seqlens[s+1]). Sums and statistics are fp32 (fp64 for fp64); what
// one formula hands to the next may be rounded to the dtype of hidden, which is that of everything. The last
// bound is the number of rows, at most N, and what stands in the rows of out behind it is anything; where
// `rows` is given it says that number, too. out may be hidden. A sequence's bits do not depend on what is
// packed beside it.
#pragma once

#include <vector>

#include "ops/activation.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

struct EncoderLayer {
  Tensor qkv_weight, qkv_bias;          // (3H, H), (3H): rows of q, k, v in this order
  Tensor proj_weight, proj_bias;        // (H, H), (H)
  Tensor attnorm_weight, attnorm_bias;  // (H)
  Tensor fc_weight, fc_bias;            // (I, H), (I)
  Tensor fcproj_weight, fcproj_bias;    // (H, I), (H)
  Tensor outnorm_weight, outnorm_bias;  // (H)
};

struct EncoderLayersForward {
  std::vector<EncoderLayer> layers;  // at least one
  Tensor hidden;                     // (N, H)
  Tensor cu_seqlens;                 // (S + 1) int32, ascending from 0
  Tensor rows;                       // (1) int32, optional
  Tensor out;                        // (N, H)
  std::int64_t heads = 1;            // of HS = H / heads
  Activation activation = Activation::gelu_erf;
  float eps = 1e-12f;

  template <class F>
  void visit(F&& f) {
    for (EncoderLayer& l : layers) {
      f("qkv_weight", l.qkv_weight, Access::read);
      f("qkv_bias", l.qkv_bias, Access::read);
      f("proj_weight", l.proj_weight, Access::read);
      f("proj_bias", l.proj_bias, Access::read);
      f("attnorm_weight", l.attnorm_weight, Access::read);
      f("attnorm_bias", l.attnorm_bias, Access::read);
      f("fc_weight", l.fc_weight, Access::read);
      f("fc_bias", l.fc_bias, Access::read);
      f("fcproj_weight", l.fcproj_weight, Access::read);
      f("fcproj_bias", l.fcproj_bias, Access::read);
      f("outnorm_weight", l.outnorm_weight, Access::read);
      f("outnorm_bias", l.outnorm_bias, Access::read);
    }
    f("cu_seqlens", cu_seqlens, Access::read);
    f("rows", rows, Access::read);
    f("hidden", hidden, Access::read);
    f("out", out, Access::write);
  }
};

struct EncoderLayersProblem {
  std::int64_t N = 0, S = 0, H = 0, heads = 1, I = 0, layers = 0;
  DType dtype = DType::f32;
  Activation activation = Activation::gelu_erf;

  bool operator==(const EncoderLayersProblem&) const = default;
  std::string describe() const;
  double flops() const;  // of sequences of equal length
  double bytes() const;  // the weights and the states once
};

const Op<EncoderLayersProblem, EncoderLayersForward>& encoder_layers_forward_op();

// Whether a variant takes the problem that is worth it: else the caller runs the operations one by one.
bool encoder_layers_are_offered(const Context& context, const EncoderLayersProblem& problem);

inline void encoder_layers_forward(Context& context, const EncoderLayersForward& args) {
  call(context, encoder_layers_forward_op(), args);
}

}  // namespace warpwright::ops
