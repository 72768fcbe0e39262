// Arguments of RMS normalization; its shapes are layer normalization's.
#pragma once

#include "ops/layernorm/cases.hpp"
#include "ops/rmsnorm/rmsnorm.hpp"

namespace warpwright::ops::rmsnorm {

using layernorm::Case;
using layernorm::few_cases;
using layernorm::Form;
using layernorm::test_cases;
using layernorm::test_forms;

inline RMSNormForward make_forward(const Case& c, const Form& form, testing::Fixture& f) {
  RMSNormForward a;
  a.x = f.random(form.dtype, {c.N, c.C}, 1, c.mean);
  if (form.weight) a.weight = f.random(form.parameters(), {c.C}, 0.5, 1);
  a.out = f.output(form.out(), {c.N, c.C});
  if (form.statistics) a.rstd = f.output(accumulation_dtype(form.dtype), {c.N});
  return a;
}

inline RMSNormBackward make_backward(const Case& c, const Form& form, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(form.dtype);
  RMSNormBackward a;
  a.dout = f.random(form.out(), {c.N, c.C});
  a.x = f.random(form.dtype, {c.N, c.C});
  if (form.weight) a.weight = f.random(form.parameters(), {c.C}, 0.5, 1);
  a.rstd = f.random(accumulation, {c.N}, 0.05, 1);
  a.dx = f.output(form.dtype, {c.N, c.C}, form.store);
  if (form.weight)
    a.dweight = f.output(form.narrow_gradients ? form.parameters() : accumulation, {c.C}, form.store);
  a.dx_store = a.dparameters_store = form.store;
  if (form.dsum) a.dsum = f.random(form.dtype, {c.N, c.C});
  return a;
}

}  // namespace warpwright::ops::rmsnorm
