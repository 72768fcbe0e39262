// Shapes of layer normalization, shared by test and bench.
#pragma once

#include <vector>

#include "ops/layernorm/layernorm.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::layernorm {

struct Case {
  std::int64_t N, C;
  double mean = 0;  // of x: a large one shows E[x²] − mean² for what it is
};

// Every length of a vector's tail, rows fewer than threads and parts and more, zero rows, GPT-2's widths, and
// for GPUs rows of one warp, of several, of a whole block, and longer ones.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0, 8},      {3, 768},        {257, 96},   {64, 1600, 100.0}, {33, 1021},
                          {2, 8191},   {2100, 32, 5.0}, {9001, 128}, {5, 769},          {7, 1024},
                          {700, 2048}, {3, 4096},       {2, 12288},  {1, 16392}};
  for (std::int64_t C = 1; C <= 70; ++C) cases.push_back({1 + C % 5, C});
  return cases;
}

inline std::vector<Case> bench_cases() {
  return {{256, 768}, {4096, 768}, {16384, 768}, {4096, 1600}};
}

inline LayerNormForward make_forward(const Case& c, DType dtype, bool statistics, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(dtype);
  LayerNormForward a;
  a.x = f.random(dtype, {c.N, c.C}, 1, c.mean);
  a.weight = f.random(dtype, {c.C}, 0.5, 1);
  a.bias = f.random(dtype, {c.C});
  a.out = f.output(dtype, {c.N, c.C});
  if (statistics) a.mean = f.output(accumulation, {c.N});
  if (statistics) a.rstd = f.output(accumulation, {c.N});
  return a;
}

// The statistics are inputs here: near those of x, as rounding leaves them.
inline LayerNormBackward make_backward(const Case& c, DType dtype, Store store, testing::Fixture& f) {
  const DType accumulation = accumulation_dtype(dtype);
  LayerNormBackward a;
  a.dout = f.random(dtype, {c.N, c.C});
  a.x = f.random(dtype, {c.N, c.C});
  a.weight = f.random(dtype, {c.C}, 0.5, 1);
  a.mean = f.random(accumulation, {c.N}, 0.05);
  a.rstd = f.random(accumulation, {c.N}, 0.05, 1);
  a.dx = f.output(dtype, {c.N, c.C}, store);
  a.dweight = f.output(accumulation, {c.C}, store);
  a.dbias = f.output(accumulation, {c.C}, store);
  a.dx_store = a.dparameters_store = store;
  return a;
}

}  // namespace warpwright::ops::layernorm
