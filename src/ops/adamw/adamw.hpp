// AdamW over all parameters at once.
//   g = scale · gradient,  m += (1 − β1)·(g − m),  v += (1 − β2)·(g² − v),
//   w −= learning_rate · ((m / c1) / (√(v / c2) + eps) + weight_decay · w)
// with the bias corrections c1 = 1 − β1^step and c2 = 1 − β2^step.
// Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
//
// A tensor on the device holds what changes between steps (scalars.hpp). A scale that is not finite changes
// nothing: ops/global_norm writes NaN for gradients that are not finite. Parameters are of one dtype, or some
// of 16 bits and some fp32. One of 16 bits has a master copy in fp32, which is updated; the parameter becomes
// the rounded master. fp64 parameters have everything beside them in fp64. Variants in fp32 may flush
// subnormal numbers (below 1.2e-38) to 0.
//
// bf16 parameters may all go without masters. Such a parameter is itself the state: what the fp32 update of
// it gives is stored by stochastic rounding (rounding.hpp), whose random bits are a function of `random` (a
// seed and the step), the tensor's place in `tensors` and the element's place in it.
#pragma once

#include <vector>

#include "ops/adamw/scalars.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

struct AdamWProblem {
  std::int64_t elements = 0, tensors = 0;
  DType dtype = DType::f32;  // of the parameters, or of those of 16 bits
  bool masters = true;       // false: those of 16 bits have none

  bool operator==(const AdamWProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct AdamWTensor {
  Tensor parameter;  // any shape
  Tensor master;     // fp32; absent for fp32 parameters, optional (fp64) for fp64 ones; of bf16, all or none
  Tensor gradient;   // fp32
  Tensor m, v;       // fp32; v ≥ 0
  double weight_decay = 0;
};

// β and eps are fp64: the fp32 nearest to 0.999 is 1.3e-5 off in 1 − β2.
struct AdamW {
  using Problem = AdamWProblem;

  std::vector<AdamWTensor> tensors;
  Tensor scalars;  // (4) fp32: AdamWScalars
  Tensor random;   // (3) int32: the lower and the upper half of a seed, the step; where masters are left out
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  template <class F>
  void visit(F&& f) {
    for (AdamWTensor& t : tensors) {
      f("parameter", t.parameter, Access::update);
      f("master", t.master, Access::update);
      f("gradient", t.gradient, Access::read);
      f("m", t.m, Access::update);
      f("v", t.v, Access::update);
    }
    f("scalars", scalars, Access::read);
    f("random", random, Access::read);
  }
  Problem problem() const;  // throws Error where they do not fit together
};

const Op<AdamW>& adamw_op();

inline void adamw(Context& context, const AdamW& args) {
  call(context, adamw_op(), args);
}

}  // namespace warpwright::ops
