// Sums of gradients, shared by test and bench.
#pragma once

#include <vector>

#include "ops/gradient_sum/gradient_sum.hpp"
#include "ops/testing/fixture.hpp"

namespace warpwright::ops::gradient_sum_kernels {

struct Case {
  std::vector<std::int64_t> sizes;  // of the sums
  std::int64_t skew = 0;            // elements by which each sum misses a multiple of 16 bytes
  bool apart = false;               // the sums are not their first terms
};

// Every length of a vector's tail, sizes around the threads' blocks, empty tensors, no tensors, unaligned
// addresses, and more tensors than one launch on a GPU takes.
inline std::vector<Case> test_cases() {
  std::vector<Case> cases{{{}},
                          {{0}},
                          {{16383, 1, 16384, 0, 16385, 40000}},
                          {{8191, 8192, 8193}},
                          {{20000, 5, 40000}, 1},
                          {std::vector<std::int64_t>(17, 9000)},
                          {std::vector<std::int64_t>(3000, 5)},
                          {{16383, 1, 16384, 0, 16385, 40000}, 0, true},
                          {{20000, 5, 40000}, 1, true},
                          {std::vector<std::int64_t>(900, 5), 0, true}};
  for (std::int64_t size = 1; size <= 150; ++size) cases.push_back({{size, 3}});
  return cases;
}

// A projection, and GPT-2 124M's token embedding.
inline std::vector<Case> bench_cases() {
  return {{{768 * 768}}, {{50304 * 768}}};
}

inline GradientSum make(const Case& c, DType dtype, testing::Fixture& f) {
  GradientSum a;
  for (const std::int64_t size : c.sizes) {
    a.sums.push_back(f.random(dtype, {size + c.skew}).slice(0, c.skew, size));
    a.addends.push_back(f.random(dtype, {size}));
    a.firsts.push_back(c.apart ? f.random(dtype, {size}) : a.sums.back());
  }
  return a;
}

}  // namespace warpwright::ops::gradient_sum_kernels
