// Sets of gradients, shared by test and bench.
#pragma once

#include <cmath>
#include <vector>

#include "ops/global_norm/global_norm.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::global_norm_kernels {

struct Case {
  std::vector<std::int64_t> sizes;  // of the tensors
  double scale = 0.1;               // of the gradients
  std::int64_t skew = 0;            // elements by which each misses a multiple of 16 bytes
};

// Every length of a vector's tail, sizes around the threads' blocks, empty tensors, no tensors, squares
// beyond the range of fp32 in both directions, unaligned addresses, and more tensors than one launch on a GPU
// takes.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{{}},
                          {{0}},
                          {{16383, 1, 16384, 0, 16385, 40000}},
                          {{100003, 7}},
                          {{20000}, 1e30},
                          {{20000}, 1e-30},
                          {{20000, 5, 40000}, 0.1, 1},
                          {std::vector<std::int64_t>(3000, 5)}};
  for (std::int64_t size = 1; size <= 150; ++size) cases.push_back({{size, 3}, 1});
  return cases;
}

// A projection, and GPT-2 124M's token embedding.
inline std::vector<Case> bench_cases() {
  return {{{768 * 768}}, {{50304 * 768}}};
}

inline Squares make(const Case& c, DType dtype, testing::Fixture& f) {
  Squares a;
  for (const std::int64_t size : c.sizes) {
    a.gradients.push_back(f.random(dtype, {size + c.skew}, c.scale).slice(0, c.skew, size));
  }
  a.sums = f.output(DType::f64, {squares_blocks(a.gradients)});
  return a;
}

inline GlobalNorm make_norm(std::int64_t blocks, DType dtype, testing::Fixture& f) {
  GlobalNorm a;
  a.sums = f.random(DType::f64, {blocks});
  if (f.with_data()) {
    for (std::int64_t i = 0; i < blocks; ++i) a.sums.as<double>()[i] = std::abs(a.sums.as<double>()[i]);
  }
  a.norm = f.output(dtype, {1});
  a.scale = f.output(dtype, {1});
  a.max_norm = 1;
  return a;
}

}  // namespace warpwright::ops::global_norm_kernels
