// Arguments of bias, residual connection and normalization; the shapes are layer normalization's.
#pragma once

#include "ops/bias_residual_layernorm/bias_residual_layernorm.hpp"
#include "ops/residual_layernorm/cases.hpp"

namespace warpwright::ops::bias_residual_layernorm {

using layernorm::Case;
using layernorm::test_cases;

struct Form {
  bool x_bias = true, sum = false, rms = false, bias = true, fp32_parameters = false;
};

// The sum is exact in any dtype, as in ops/residual_layernorm.
inline BiasResidualLayerNormForward make_forward(const Case& c, DType dtype, const Form& form,
                                                 testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(dtype);
  const DType parameters = form.fp32_parameters ? DType::f32 : dtype;
  const float step = c.mean > 10 ? 0.5f : 0.0625f;
  BiasResidualLayerNormForward a;
  a.x = f.random(dtype, {c.N, c.C}, 1, c.mean);
  a.residual = f.random(dtype, {c.N, c.C}, 0.5);
  if (form.x_bias) a.x_bias = f.random(dtype, {c.C}, 0.5);
  for (const Tensor& t : {a.x, a.residual, a.x_bias}) {
    if (t && f.with_data()) residual_layernorm::coarsen(t, step);
  }
  a.weight = f.random(parameters, {c.C}, 0.5, 1);
  if (form.bias && !form.rms) a.bias = f.random(parameters, {c.C});
  if (form.sum) a.sum = f.output(dtype, {c.N, c.C});
  a.out = f.output(dtype, {c.N, c.C});
  if (form.sum && !form.rms) a.mean = f.output(accumulation, {c.N});
  if (form.sum) a.rstd = f.output(accumulation, {c.N});
  a.rms = form.rms;
  return a;
}

}  // namespace warpwright::ops::bias_residual_layernorm
