// AdamW over all parameters at once.
//   g = scale · gradient,  m += (1 − β1)·(g − m),  v += (1 − β2)·(g² − v),
//   w −= learning_rate · ((m / c1) / (√(v / c2) + eps) + weight_decay · w)
// with the bias corrections c1 = 1 − β1^step and c2 = 1 − β2^step.
// Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
//
// A tensor on the device holds the numbers that change between steps (scalars.hpp). If the scale is not
// finite, nothing changes; ops/global_norm writes NaN for gradients that are not finite.
//
// All parameters have one dtype, or some are bf16 and the others fp32. A bf16 parameter has an fp32 master,
// which is kept as the parameter and a remainder of 16 bits (master.hpp). The update changes the master, and
// the parameter becomes the rounded master. For fp64 parameters, gradients and moments are fp64, too.
// Variants in fp32 may flush subnormal numbers (below 1.2e-38) to 0.
//
// bf16 parameters may all go without masters. The update then computes the new parameter in fp32 and stores
// it with stochastic rounding (rounding.hpp). The random bits are a function of `random` (a seed and the
// step), the parameter's number and the element's index in the parameter.
#pragma once

#include <vector>

#include "ops/adamw/scalars.hpp"
#include "ops/op.hpp"

namespace warpwright::ops {

struct AdamWProblem {
  std::int64_t elements = 0, tensors = 0;
  DType dtype = DType::f32;  // the parameters' narrowest
  bool masters = true;       // false: bf16 parameters have none

  bool operator==(const AdamWProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

struct AdamWTensor {
  Tensor parameter;  // any shape
  Tensor remainder;  // int16, of a bf16 parameter (master.hpp); all bf16 parameters have one, or none has
  Tensor gradient;   // fp32
  Tensor m, v;       // fp32; v ≥ 0
  double weight_decay = 0;
  // Of the random bits: the parameter's number, and the parameter's element at which this tensor begins, a
  // multiple of kRandomElements (rounding.hpp). A part of a parameter gets the bits that it has in the whole.
  std::uint32_t number = 0;
  std::int64_t first = 0;
};

// β and eps are fp64: the fp32 nearest to 0.999 is 1.3e-5 off in 1 − β2.
struct AdamW {
  using Problem = AdamWProblem;

  std::vector<AdamWTensor> tensors;
  Tensor scalars;  // (4) fp32: AdamWScalars
  Tensor random;   // (3) int32: a seed's lower and upper half, the step; needed without masters
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;

  template <class F>
  void visit(F&& f) {
    for (AdamWTensor& t : tensors) {
      f("parameter", t.parameter, Access::update);
      f("remainder", t.remainder, Access::update);
      f("gradient", t.gradient, Access::read);
      f("m", t.m, Access::update);
      f("v", t.v, Access::update);
    }
    f("scalars", scalars, Access::read);
    f("random", random, Access::read);
  }
  Problem problem() const;  // throws Error if they do not fit together
};

const Op<AdamW>& adamw_op();

inline void adamw(Context& context, const AdamW& args) {
  call(context, adamw_op(), args);
}

}  // namespace warpwright::ops
