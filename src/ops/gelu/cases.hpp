// Sizes of GELU, shared by test and bench.
#pragma once

#include <vector>

#include "ops/gelu/gelu.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::gelu {

struct Case {
  std::int64_t elements;
  double scale = 2;  // of x: 2 covers the curved part, 20 both tails
};

// Every length of a vector's tail, no elements, and sizes near multiples of the threads' blocks.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0}, {16383}, {16384}, {16385}, {50000, 20}, {70001}};
  for (std::int64_t elements = 1; elements <= 70; ++elements) cases.push_back({elements});
  return cases;
}

// The feed-forward layer of GPT-2 124M: (B·T, 4·768).
inline std::vector<Case> bench_cases() {
  return {{256 * 3072}, {4096 * 3072}};
}

// B·T = 65,536, as in a GPU's training step.
inline std::vector<Case> gpu_bench_cases() {
  return {{65536 * 3072}};
}

inline GeluForward make_forward(const Case& c, DType dtype, Activation activation, testing::Fixture& f) {
  return {f.random(dtype, {c.elements}, c.scale), f.output(dtype, {c.elements}), activation};
}

inline GeluBackward make_backward(const Case& c, DType dtype, Activation activation, testing::Fixture& f) {
  return {f.random(dtype, {c.elements}), f.random(dtype, {c.elements}, c.scale),
          f.output(dtype, {c.elements}), activation};
}

}  // namespace warpwright::ops::gelu
