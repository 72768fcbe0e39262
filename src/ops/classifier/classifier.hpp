// Softmax cross entropy over the vocabulary; forward and backward are one operation.
//   losses[n] = log Σ_{v<V} exp(logits[n, v]) − logits[n, targets[n]]
//   with gradient: logits[n, v] = weights[n] · (softmax(logits[n])_v − [v = targets[n]])  for v < V
//                  logits[n, v] = 0                                                       for V ≤ v < Vp
// Source: J. S. Bridle, "Probabilistic Interpretation of Feedforward Classification Network Outputs", 1990.
//
// The gradient replaces the logits (=). The padding columns V ≤ v < Vp never take part in the softmax.
// weights[n] is 1/N if no weights are given. A target of −1 leaves its row out: the loss and the gradient are
// 0 for any logits, and the probabilities, if requested, are computed as for other rows.
//
// Losses are unweighted, in nats. A NaN or +inf among a row's first V logits makes the row's loss NaN. A
// logit of −inf has probability 0. The softmax is computed in fp32 (fp64 for fp64 logits).
//
// All tensors are contiguous. Throws Error if a tensor does not fit. The caller checks the targets: −1 ≤
// targets[n] < V.
#pragma once

#include "ops/op.hpp"

namespace warpwright::ops {

struct ClassifierProblem {
  std::int64_t N = 0, V = 0, Vp = 0;
  DType dtype = DType::f32;
  bool gradient = true, weights = false, probabilities = false;
  bool aligned = true;  // the tensors that are moved in packs begin at multiples of 16 bytes

  bool operator==(const ClassifierProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct Classifier {
  using Problem = ClassifierProblem;

  Tensor logits;         // (N, Vp); read only, or replaced by dlogits
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
  Problem problem() const;  // throws Error if the tensors do not fit together
};

const Op<Classifier>& classifier_op();

inline void classifier(Context& context, const Classifier& args) {
  call(context, classifier_op(), args);
}

}  // namespace warpwright::ops
