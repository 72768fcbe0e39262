// Draws one token for each row of logits.
//
//   l_v     = logit of token v, in fp32; if the sequence has v already, a positive one is divided by
//             repetition_penalty and a negative one multiplied by it
//   weight  w_v = exp((l_v − max l)/temperature)
//   cuts    top_k keeps the k tokens with the largest l; top_p, of those, the fewest that have this share of
//           their weight, the largest l first; min_p those with w ≥ min_p. If two l are equal,
//           the smaller token comes first. The likeliest token always stays.
//   draw    the first token, in order, at which the weights so far exceed the share random/2^64 of the
//           weights that stay
// A temperature of 0 takes the token with the largest l, whatever the cuts.
// Sources: A. Fan et al., arXiv:1805.04833 (top-k); A. Holtzman et al., arXiv:1904.09751 (top-p); N. Keskar
// et al., arXiv:1909.05858 (the penalty), with Hugging Face's rule for negative logits.
//
// Weights are integers, w·2^40 without its fraction, so a sum of them does not depend on its order: the token
// is a pure function of the row's arguments. Devices may round exp() differently, and then draw another token
// where the share falls on the boundary of two.
//
// token[m] is −1 if a logit of row m is not finite; next_input[m] is then 0. Throws Error if a tensor does
// not fit. Options outside the ranges below are the caller's mistake: the token is then undefined.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct SamplingProblem {
  std::int64_t M = 0, V = 0;
  std::int64_t stride = 0;  // elements between two rows of logits
  DType dtype = DType::f32;
  bool seen = false;
  bool next_input = false;
  bool aligned = true;  // every row of logits begins at a multiple of 16 bytes

  bool operator==(const SamplingProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct Sampling {
  using Problem = SamplingProblem;

  Tensor logits;              // (M, V), 1 ≤ V ≤ 2^23; its rows may be strided
  Tensor temperature;         // (M) fp64, ≥ 0
  Tensor top_k;               // (M) int64; ≤ 0: all
  Tensor top_p;               // (M) fp64, in (0, 1]
  Tensor min_p;               // (M) fp64, in [0, 1]
  Tensor repetition_penalty;  // (M) fp64, > 0
  Tensor random;              // (M) int64: 64 uniform bits
  // (M, ⌈V/32⌉) int32, optional: bit v % 32 of word v / 32 is set if the sequence has v. The bits of v ≥ V
  // are not read.
  Tensor seen;
  Tensor token;         // (M) int32
  Tensor next_input{};  // (M) int32, optional: the token again, for a pass that reads it before the host does

  template <class F>
  void visit(F&& f) {
    f("logits", logits, Access::read);
    f("temperature", temperature, Access::read);
    f("top_k", top_k, Access::read);
    f("top_p", top_p, Access::read);
    f("min_p", min_p, Access::read);
    f("repetition_penalty", repetition_penalty, Access::read);
    f("random", random, Access::read);
    f("seen", seen, Access::read);
    f("token", token, Access::write);
    f("next_input", next_input, Access::write);
  }
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<Sampling>& sampling_op();

inline void sample(Context& context, const Sampling& args) {
  call(context, sampling_op(), args);
}

}  // namespace warpwright::ops
