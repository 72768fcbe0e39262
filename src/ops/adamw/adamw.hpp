// AdamW over all parameters at once.
//   g = scale · grad,  m = β1·m + (1 − β1)·g,  v = β2·v + (1 − β2)·g²,
//   w −= lr · ((m / c1) / (√(v / c2) + eps) + weight_decay · w)      c1 = 1 − β1^step, c2 = 1 − β2^step
// Source: I. Loshchilov, F. Hutter, "Decoupled Weight Decay Regularization", arXiv:1711.05101.
//
// What changes between steps (lr, c1, c2, scale) stands in a tensor on the device, so that a captured step is
// replayed as it is. A scale that is not finite (ops/global_norm writes NaN for gradients that are not)
// changes nothing. Where a parameter is not fp32 (fp64 beside fp64) it has a master copy in fp32, which is
// updated; the parameter becomes the rounded master.
#pragma once

#include <vector>

#include "ops/op.hpp"

namespace warpwright::ops {

struct AdamWTensor {
  Tensor parameter;  // any shape
  Tensor master;     // fp32, present exactly where the parameter is bf16 or fp16
  Tensor gradient;   // fp32
  Tensor m, v;       // fp32
  float weight_decay = 0;
};

struct AdamW {
  std::vector<AdamWTensor> tensors;
  Tensor schedule;  // (4) fp32: lr, c1, c2, scale
  float beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f;

  template <class F>
  void visit(F&& f) {
    for (AdamWTensor& t : tensors) {
      f("parameter", t.parameter, t.master ? Access::write : Access::update);
      f("master", t.master, Access::update);
      f("gradient", t.gradient, Access::read);
      f("m", t.m, Access::update);
      f("v", t.v, Access::update);
    }
    f("schedule", schedule, Access::read);
  }
};

struct AdamWProblem {
  std::int64_t elements = 0, tensors = 0;
  DType dtype = DType::f32;  // of the parameters

  bool operator==(const AdamWProblem&) const = default;
  std::string describe() const;
  double flops() const;
  double bytes() const;
};

const Op<AdamWProblem, AdamW>& adamw_op();

inline void adamw(Context& context, const AdamW& args) {
  call(context, adamw_op(), args);
}

}  // namespace warpwright::ops
