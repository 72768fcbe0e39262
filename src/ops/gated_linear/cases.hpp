// Sizes of the gated product, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/gated_linear/gated_linear.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::gated_linear {

struct Case {
  std::int64_t M, F, C;      // rows, columns of out, columns of x and of dout
  std::int64_t padding = 0;  // elements between the rows of x and of dout
};

// Odd sizes; the edges of the fused kernels' tiles (256 rows of a cluster, 96 and 192 columns, slabs of 64
// terms); no rows, no columns, no depth.
inline std::vector<Case> test_cases() {
  return {{0, 16, 8},       {5, 0, 8},          {5, 8, 0},       {3, 7, 5},      {17, 33, 20, 3},
          {1, 8, 8},        {128, 96, 64},      {129, 96, 72},   {127, 104, 56}, {256, 192, 200},
          {257, 128, 64},   {300, 200, 136, 8}, {513, 136, 328}, {64, 1000, 8},  {1, 600, 576},
          {1100, 264, 200}, {2050, 1544, 16},   {640, 1160, 72}};
}

// Several tiles for each group of the 66 clusters of an H200, and several slabs.
inline std::vector<Case> large_test_cases() {
  return {{9000, 600, 200}, {33'000, 104, 264}};
}

// One sequence of SmolLM2-135M, Qwen2.5-0.5B and Llama-3.2-1B, and the batches of a GPU's training step.
inline std::vector<Case> bench_cases() {
  return {{2048, 1536, 576}, {2048, 4864, 896}, {2048, 8192, 2048}};
}
inline std::vector<Case> gpu_bench_cases() {
  return {{16 * 2048, 1536, 576}, {8 * 2048, 4864, 896}, {4 * 2048, 8192, 2048}};
}

inline Tensor random_rows(const Case& c, DType dtype, testing::Fixture& f) {
  return f.random(dtype, {c.M, c.C + c.padding}).slice(1, 0, c.C);
}
// Weights for which gate and up have a deviation of about 2.
inline double weight_scale(std::int64_t terms) {
  return 2 / std::sqrt(static_cast<double>(std::max<std::int64_t>(terms, 1)));
}

inline GatedForward make_forward(const Case& c, DType dtype, GateActivation activation, testing::Fixture& f,
                                 bool bias = false) {
  return {.x = random_rows(c, dtype, f),
          .weight = f.random(dtype, {2 * c.F, c.C}, weight_scale(c.C)),
          .bias = bias ? f.random(dtype, {2 * c.F}) : Tensor(),
          .gate_up = f.output(dtype, {c.M, 2 * c.F}),
          .out = f.output(dtype, {c.M, c.F}),
          .activation = activation};
}

// out: also the forward's result.
inline GatedDx make_dx(const Case& c, DType dtype, GateActivation activation, testing::Fixture& f,
                       bool out = false) {
  return {.dout = random_rows(c, dtype, f),
          .weight = f.random(dtype, {c.C, c.F}, weight_scale(c.C)),
          .gate_up = f.random(dtype, {c.M, 2 * c.F}, 2),
          .out = out ? f.output(dtype, {c.M, c.F}) : Tensor(),
          .scratch = out ? Tensor() : f.output(dtype, {c.M, c.F}),
          .activation = activation};
}

}  // namespace warpwright::ops::gated_linear
