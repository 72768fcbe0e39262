// Sizes of the rotated product, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/rope/angles.hpp"
#include "ops/rotated_linear/rotated_linear.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::rotated_linear {

struct Case {
  std::int64_t M, heads, rotated, HS, K;
  std::int64_t R = 0;        // 0: HS
  std::int64_t padding = 0;  // elements between the rows of x
  std::int64_t P = 64;       // positions
};

// No rows and no depth; odd sizes and partial rotations; the edges of the fused kernel's tiles (256 rows of a
// cluster, 96 pairs, slabs of 64 terms) with heads of 64, 128, 192 and 256.
inline std::vector<Case> test_cases() {
  return {{0, 3, 2, 64, 8},
          {5, 3, 2, 64, 0},
          {3, 5, 3, 10, 7},
          {17, 4, 3, 32, 20, 24, 3},
          {9, 3, 2, 80, 16, 32},
          {1, 3, 2, 64, 8},
          {128, 3, 2, 64, 64},
          {129, 3, 3, 64, 72},
          {127, 4, 3, 64, 56},
          {256, 1, 1, 64, 200},
          {257, 6, 4, 64, 64},
          {300, 7, 5, 64, 136, 0, 8},
          {513, 5, 4, 128, 328},
          {64, 3, 2, 128, 8},
          {130, 9, 8, 128, 72},
          {100, 2, 1, 256, 64},
          {70, 5, 3, 192, 40},
          {1100, 12, 9, 64, 200},
          {640, 18, 16, 64, 72, 0, 0, 700}};
}

// Several tiles for each group of the 66 clusters of an H200, and several slabs.
inline std::vector<Case> large_test_cases() {
  return {{9000, 7, 5, 64, 200}, {33'000, 2, 1, 128, 264}};
}

// SmolLM2-135M, Qwen2.5-0.5B, Llama-3.2-1B and Qwen2.5-1.5B with one sequence, and with the batches of a
// GPU's training step.
inline std::vector<Case> bench_cases(std::int64_t batch_tokens) {
  const auto rows = [&](std::int64_t sequences) { return batch_tokens ? sequences * batch_tokens : 2048; };
  return {{rows(16), 15, 12, 64, 576, 0, 0, 2048},
          {rows(8), 18, 16, 64, 896, 0, 0, 2048},
          {rows(4), 48, 40, 64, 2048, 0, 0, 2048},
          {rows(4), 16, 14, 128, 1536, 0, 0, 2048}};
}

inline RotatedForward make_forward(const Case& c, DType dtype, RopeLayout layout, testing::Fixture& f,
                                   bool bias = false) {
  const std::int64_t N = c.heads * c.HS, R = c.R ? c.R : c.HS;
  const double scale = 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(c.K, 1)));
  RotatedForward a;
  a.x = f.random(dtype, {c.M, c.K + c.padding}).slice(1, 0, c.K);
  a.weight = f.random(dtype, {N, c.K}, scale);
  if (bias) a.bias = f.random(dtype, {N});
  a.out = f.output(dtype, {c.M, c.heads, c.HS});
  a.rotated = c.rotated;
  std::vector<std::int32_t>
      positions;  // sequences of P positions, one after the other; the first begins at 3
  for (std::int64_t n = 0; n < c.M; ++n) positions.push_back(static_cast<std::int32_t>((n + 3) % c.P));
  a.positions = f.integers(positions);
  a.cos = f.output(accumulation_dtype(dtype), {c.P, R / 2});
  a.sin = f.output(accumulation_dtype(dtype), {c.P, R / 2});
  if (f.with_data()) write_rope_tables({.theta = 100, .R = R}, a.cos, a.sin);
  a.wrong = f.output(DType::i64, {1});  // −1: all its bits are 1
  a.layout = layout;
  return a;
}

}  // namespace warpwright::ops::rotated_linear
