// Sizes of the residual connection, shared by test and bench.
#pragma once

#include <vector>

#include "ops/residual/residual.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::residual {

struct Case {
  std::int64_t elements;
};

// Every length of a vector's tail, no elements, and sizes near multiples of the threads' blocks.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{0}, {16383}, {16384}, {16385}, {70001}};
  for (std::int64_t elements = 1; elements <= 70; ++elements) cases.push_back({elements});
  return cases;
}

// The residual stream of GPT-2 124M: (B·T, 768).
inline std::vector<Case> bench_cases() {
  return {{256 * 768}, {4096 * 768}, {16384 * 768}};
}

// B·T = 65,536, as in a GPU's training step: GPT-2 124M and 1558M.
inline std::vector<Case> gpu_bench_cases() {
  return {{65536 * 768}, {65536 * 1600}};
}

inline ResidualForward make_forward(const Case& c, DType dtype, testing::Fixture& f) {
  return {f.random(dtype, {c.elements}), f.random(dtype, {c.elements}), f.output(dtype, {c.elements})};
}

inline ResidualBackward make_backward(const Case& c, DType dtype, testing::Fixture& f) {
  return {f.random(dtype, {c.elements}), f.random(dtype, {c.elements}), f.random(dtype, {c.elements})};
}

}  // namespace warpwright::ops::residual
