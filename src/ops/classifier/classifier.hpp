// Softmax cross entropy over the vocabulary, forward and backward in one operation.
//   losses[n] = log Σ_{v<V} exp(logits[n, v]) − logits[n, targets[n]]
//   with gradient: logits[n, v] := weights[n] · (softmax(logits[n])_v − [v = targets[n]]) for v < V, and
//   exactly 0 for the padding columns V ≤ v < Vp, which never take part in the softmax
// weights[n] is 1/N where no weights are given. A target of −1 marks a row to leave out: loss 0, gradient 0,
// whatever its logits; its probabilities, where asked for, are those of any row.
// Source: J. S. Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs", 1990.
//
// Losses are unweighted, in nats. A NaN or +inf among a row's V logits makes its loss NaN; −inf is a logit of
// probability 0. Targets are the caller's to check: −1 ≤ targets[n] < V. Softmax in fp32 (fp64 for fp64).
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct ClassifierProblem {
  std::int64_t N = 0, V = 0, Vp = 0;
  DType dtype = DType::f32;
  bool gradient = true, weights = false, probabilities = false;
  bool aligned = true;  // what is moved in packs begins at multiples of 16 bytes

  bool operator==(const ClassifierProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct Classifier {
  using Problem = ClassifierProblem;

  Tensor logits;         // (N, Vp); with gradient replaced by dlogits, else read only
  Tensor targets;        // (N) int32
  Tensor weights;        // (N) fp32 (fp64 for fp64 logits), optional
  Tensor losses;         // (N) fp32 (fp64 for fp64 logits)
  Tensor probabilities;  // (N, V) of the logits' dtype, optional
  std::int64_t V = 0;    // real vocabulary, ≤ Vp
  bool gradient = true;

  template <class F>
  void visit(F&& f) {
    f("logits", logits, gradient ? Access::update : Access::read);
    f("targets", targets, Access::read);
    f("weights", weights, Access::read);
    f("losses", losses, Access::write);
    f("probabilities", probabilities, Access::write);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<Classifier>& classifier_op();

inline void classifier(Context& context, const Classifier& args) {
  call(context, classifier_op(), args);
}

}  // namespace warpwright::ops
