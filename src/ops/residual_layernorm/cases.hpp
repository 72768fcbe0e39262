// Shapes of residual connection and layer normalization, shared by test and bench.
#pragma once

#include <cmath>

#include "ops/layernorm/cases.hpp"
#include "ops/residual_layernorm/residual_layernorm.hpp"

namespace warpwright::ops::residual_layernorm {

using layernorm::bench_cases;
using layernorm::Case;
using layernorm::gpu_bench_cases;
using layernorm::test_cases;

// To multiples of `step`.
inline void coarsen(const Tensor& t, float step) {
  visit_dtype(t.dtype, [&](auto tag) {
    using T = typename decltype(tag)::type;
    T* elements = t.as<T>();
    const std::int64_t count = t.elements();
#pragma omp parallel for
    for (std::int64_t i = 0; i < count; ++i) {
      elements[i] = T(std::nearbyint(static_cast<float>(elements[i]) / step) * step);
    }
  });
}

// x and y have so few bits that their sum is exact in any dtype: the rounding of residual, which the
// statistics are taken of, is part of the contract, and fp64 copies of the arguments cannot show it.
inline ResidualLayerNormForward make_forward(const Case& c, DType dtype, bool statistics, testing::Fixture& f,
                                             bool rms = false, bool fp32_parameters = false) {
  const DType accumulation = accumulation_dtype(dtype), parameters = fp32_parameters ? DType::f32 : dtype;
  ResidualLayerNormForward a;
  a.x = f.random(dtype, {c.N, c.C}, 1, c.mean);
  a.y = f.random(dtype, {c.N, c.C}, 0.5);
  for (const Tensor& t : {a.x, a.y}) {
    if (f.with_data()) coarsen(t, c.mean > 10 ? 0.5f : 0.0625f);
  }
  a.weight = f.random(parameters, {c.C}, 0.5, 1);
  if (!rms) a.bias = f.random(parameters, {c.C});
  a.rms = rms;
  a.residual = f.output(dtype, {c.N, c.C});
  a.out = f.output(dtype, {c.N, c.C});
  if (statistics && !rms) a.mean = f.output(accumulation, {c.N});
  if (statistics) a.rstd = f.output(accumulation, {c.N});
  return a;
}

}  // namespace warpwright::ops::residual_layernorm
